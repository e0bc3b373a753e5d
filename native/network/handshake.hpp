// The handshake: one TCP connection for each pair of ranks on different hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "network/socket.hpp"
#include "network/wire.hpp"

namespace sley {

// A rank's place in the network: its addresses and listeners.
struct TcpSite {
    std::int32_t rank = 0;
    std::vector<bool> remote;       // of each rank: whether it is on another host
    std::vector<std::string> nics;  // addresses of this host
    std::size_t nic = 0;            // the number of this rank's NIC
    std::vector<Socket> listeners;  // one at each NIC

    std::string address() const;
};

// One socket to each remote rank. The lower rank of a pair connects, through its NIC and the other
// host's NIC with the same number. Both prove that they know the secret, which stays with them: each
// answers the other's nonce, first the accepting rank, so that one that connects to a stranger says
// nothing but its number. Strangers are refused, and delay no rank. Throws std::system_error, which
// names a rank.
std::vector<Socket> shake_hands(const TcpSite& site, const Meeting& meeting);

}  // namespace sley
