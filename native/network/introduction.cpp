#include "network/introduction.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace sley {
namespace {

constexpr auto kStrangerWait = std::chrono::seconds(5);  // for the hello of a new connection

}  // namespace

Introduction::Introduction(Socket socket, bool connects, std::int32_t rank, std::int32_t peer)
    : socket_(std::move(socket)), step_(connects ? Step::kConnecting : Step::kHello),
      connects_(connects) {
    own_.rank = rank;
    own_.peer = peer;
}

pollfd Introduction::waits_for() const {
    return {socket_.fd(), static_cast<short>(step_ == Step::kConnecting ? POLLOUT : POLLIN), 0};
}

bool Introduction::is_silent(Clock::time_point now) const {
    return !connects_ && step_ == Step::kHello && now - since_ > kStrangerWait;
}

void Introduction::advance(const Secret& secret, const std::function<bool(const Hello&)>& fits) {
    if (step_ != Step::kConnecting) return read(secret, fits);
    error_ = socket_.take_error();
    step_ = error_ == 0 ? Step::kHello : Step::kRefused;
    if (error_ != 0) return;
    own_.nonce = make_nonce();
    send(bytes_of(own_));
}

// The buffer of a new socket has room for all that the handshake sends.
void Introduction::send(std::string_view bytes) {
    const auto sent = ::send(socket_.fd(), bytes.data(), bytes.size(), kSendFlags);
    if (sent != static_cast<ssize_t>(bytes.size())) step_ = Step::kRefused;
}

// The proof of one end. It says which, so that nobody can send an end its own proof.
Digest Introduction::proof(const Secret& secret, bool of_connecting) const {
    const std::string_view who = of_connecting ? "connects" : "accepts";
    return hmac(secret, {who, bytes_of(connects_ ? own_ : theirs_.hello),
                         bytes_of(connects_ ? theirs_.hello : own_)});
}

void Introduction::read(const Secret& secret, const std::function<bool(const Hello&)>& fits) {
    auto* bytes = reinterpret_cast<char*>(&theirs_);
    const auto more = recv(socket_.fd(), bytes + bytes_, sizeof theirs_ - bytes_, 0);
    if (more < 0 && (would_block(errno) || errno == EINTR)) return;
    if (more > 0) bytes_ += static_cast<std::size_t>(more);
    const auto& hello = theirs_.hello;
    const auto magic = std::min(bytes_, hello.magic.size());
    if (more <= 0 || std::memcmp(bytes, Hello{}.magic.data(), magic) != 0) {
        step_ = Step::kRefused;
        return;
    }
    if (step_ == Step::kHello && bytes_ >= sizeof hello) {
        step_ = hello.version == own_.version && fits(hello) ? Step::kProof : Step::kRefused;
        if (step_ == Step::kProof && !connects_) {
            own_.peer = hello.rank;
            own_.nonce = make_nonce();
            send(bytes_of(Greeting{own_, proof(secret, false)}));
        }
    }
    if (step_ != Step::kProof || bytes_ < sizeof theirs_) return;
    const bool is_right = is_same(theirs_.proof, proof(secret, !connects_));
    step_ = is_right ? Step::kDone : Step::kRefused;
    if (is_right && connects_) send(bytes_of(proof(secret, true)));
}

}  // namespace sley
