// The UCX wire, for networks that offer more than TCP: frames are active messages.
//
// UCX doesn't authenticate connections. So each rank proves to each peer that it knows the job's
// secret, by answering the peer's nonce. A peer that has proven it gets frames, which carry a stamp
// that only the job's ranks can make: this keeps strangers and other jobs out, but not an eavesdropper,
// who sees stamps, though not the secret.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "network/ucx_library.hpp"
#include "network/wire.hpp"

namespace sley {

class UcxWire final : public Wire {
public:
    // remote: of each rank, whether it is on another host.
    UcxWire(std::int32_t rank, const std::vector<bool>& remote, UcxSettings settings);
    ~UcxWire() override;

    std::string address() const override;
    void connect(const Meeting& meeting, FrameSink& sink) override;
    bool has_room(std::int32_t peer, FrameKind kind) const override;
    bool is_lost(std::int32_t peer) const override;
    void post(std::int32_t peer, const FrameHeader& header, const std::byte* payload) override;
    bool send() override { return false; }  // `post` does
    bool receive(FrameSink& sink) override;
    std::vector<pollfd> arrivals() override;
    void watch(FrameSink&) override {}  // UCX does, on its own
    bool is_sent() const override;
    bool is_delivered() override;

private:
    using Clock = std::chrono::steady_clock;

    // The first fields of every active message. key: a part of the proof that `from` is a rank of the
    // job; 0 in a greeting, which has a whole proof or none.
    struct Stamp {
        std::uint64_t key;
        std::int32_t from;
        std::int32_t to;
    };
    struct StampedFrame {
        Stamp stamp;
        FrameHeader header;
    };
    // kHello asks the peer to answer `own` with a kProof, which has `own` as its `asked`. kBye asks
    // whether all earlier frames have arrived, kByeConfirmed confirms it.
    enum class Word : std::uint32_t { kHello, kProof, kBye, kByeConfirmed };
    struct Greeting {
        Stamp stamp;
        Word word;
        Nonce own;
        Nonce asked;
        Digest proof;
    };
    enum MessageId : unsigned { kFrames, kGreetings };

    struct Peer {
        UcxWire* wire = nullptr;
        std::int32_t rank = -1;
        UcxRail* rail = nullptr;
        ucp::Endpoint endpoint = nullptr;
        std::uint64_t key_to = 0, key_from = 0;  // of the stamps to it, and from it
        int data = 0, frames = 0;                // being sent
        bool is_met = false, has_sent_bye = false, is_bye_confirmed = false;
        Clock::time_point last_frame{};  // the time of the last frame
        Failure loss = Failure::kNone;
        bool is_loss_reported = false;
    };
    // A frame that is being sent or fetched. UCX reads its head until it is sent.
    struct Transfer {
        Peer* peer = nullptr;
        bool is_data = false;
        StampedFrame frame{};
        Greeting greeting{};
    };

    Peer* peer(std::int32_t rank);
    const Peer* peer(std::int32_t rank) const;
    void open(Peer& peer, const std::string& address);
    void raise_absent(bool is_late) const;

    Transfer* take_transfer(Peer& peer);
    void greet(Peer& peer, Word word, const Nonce& asked = {});
    Digest proof(const Greeting& greeting) const;
    std::uint64_t key(std::int32_t from, std::int32_t to) const;
    void send(Transfer* transfer, unsigned id, const void* header, std::size_t header_bytes,
              const void* payload, std::size_t bytes);
    void end_sending(Transfer* transfer);
    void lose(Peer& peer);
    void progress();
    Peer* sender(const Stamp& stamp);
    Peer* stamped_sender(const Stamp& stamp);
    ucp::Status fetch(Peer& from, const StampedFrame& frame, void* descriptor, std::byte* place);
    void end_fetch(Transfer* transfer, bool is_whole);

    static void on_sent(ucp::Request request, ucp::Status status, void* user_data);
    static void on_received(ucp::Request request, ucp::Status status, std::size_t length,
                            void* user_data);
    static void on_error(void* argument, ucp::Endpoint endpoint, ucp::Status status);
    static ucp::Status on_frame(void* argument, const void* header, std::size_t header_length,
                                void* data, std::size_t length,
                                const ucp::ActiveMessageParams* params);
    static ucp::Status on_greeting(void* argument, const void* header, std::size_t header_length,
                                   void* data, std::size_t length,
                                   const ucp::ActiveMessageParams* params);

    std::int32_t rank_;
    UcxSettings settings_;
    std::shared_ptr<const UcxLibrary> library_;
    std::vector<std::unique_ptr<UcxRail>> rails_;  // of each NIC
    std::vector<std::unique_ptr<Peer>> peers_;     // of each rank; null for those of this host
    std::vector<UcxRail*> used_;
    std::vector<std::unique_ptr<Transfer>> transfers_;
    std::vector<Transfer*> free_;
    Secret secret_{};
    Nonce nonce_{};  // which the peers answer
    FrameSink* sink_ = nullptr;  // while frames may arrive
    bool moved_ = false;
    Clock::time_point asked_{};  // the time of the first `is_delivered`
};

}  // namespace sley
