//! QUIC settings that pay, each with its reason, and the sockets under them.
//!
//! Two uses: [`Use::Control`] (node ↔ node: few small messages, quick to notice a dead peer) and
//! [`Use::Edge`] (rank ↔ rank: a hidden state per step, where microseconds count). This module knows
//! no key and no message. Start at [`open`].

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use daisy_proto::Device;
use quinn::congestion::CubicConfig;
use quinn::{
    AckFrequencyConfig, Endpoint, EndpointConfig, MtuDiscoveryConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use socket2::{Domain, Protocol, Socket, Type};

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Control,
    Edge,
}

/// An endpoint without TLS: the caller adds it per connection.
#[derive(Debug, Clone)]
pub(crate) struct Open {
    pub endpoint: Endpoint,
    pub transport: Arc<TransportConfig>,
}

/// A UDP socket whose buffers hold a burst. Made apart from [`open`], since a rank binds before it
/// has a runtime. With a device nothing goes over another one: 169.254/16 is on several at once, and so
/// is a network that has both a cable and a radio.
pub(crate) fn bind(addr: SocketAddr, device: Option<&Device>) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        // `[::]` also takes IPv4 dials, whatever the system's default is.
        socket.set_only_v6(false)?;
    }
    // The default buffer (about 200 KB) overflows at a burst of 1 MB: 30–55 ms at the tail. Linux
    // grants what it allows, macOS refuses what it does not; the initial window below follows suit.
    let sizes = || [1, 2, 4, 8].map(|part| SOCKET_BUFFER_BYTES / part).into_iter();
    let _ = sizes().find(|size| socket.set_recv_buffer_size(*size).is_ok());
    let _ = sizes().find(|size| socket.set_send_buffer_size(*size).is_ok());
    if let Some(device) = device {
        bind_device(&socket, addr, device)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    Ok(socket.into())
}

#[cfg(target_vendor = "apple")]
pub(crate) fn bind_device(socket: &Socket, addr: SocketAddr, device: &Device) -> io::Result<()> {
    // Without an index the routes decide.
    let index = std::num::NonZeroU32::new(device.index);
    if addr.is_ipv4() {
        socket.bind_device_by_index_v4(index)
    } else {
        socket.bind_device_by_index_v6(index)
    }
}

#[cfg(not(target_vendor = "apple"))]
pub(crate) fn bind_device(socket: &Socket, _addr: SocketAddr, device: &Device) -> io::Result<()> {
    socket.bind_device(Some(device.name.as_bytes()))
}

/// Puts QUIC on `socket`. Must be called within a Tokio runtime, which then drives the endpoint.
pub(crate) fn open(
    socket: UdpSocket,
    purpose: Use,
    server: Option<quinn::ServerConfig>,
) -> io::Result<Open> {
    let granted = Socket::from(socket.try_clone()?).recv_buffer_size()?;
    let transport = Arc::new(transport(purpose, granted));
    let server = server.map(|mut server| {
        server.transport_config(Arc::clone(&transport));
        // What waits for `accept` costs memory before anyone is authenticated.
        server.max_incoming(INCOMING_MAX);
        server.incoming_buffer_size(INCOMING_BYTES_MAX);
        server.incoming_buffer_size_total(INCOMING_MAX as u64 * INCOMING_BYTES_MAX);
        server
    });
    let endpoint = Endpoint::new(endpoint_config(purpose), server, socket, Arc::new(TokioRuntime))?;
    Ok(Open { endpoint, transport })
}

/// An IPv4 peer of a socket for both families, as people write it.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), addr.port()),
        // As it is: it may have a scope.
        IpAddr::V6(_) => addr,
    }
}

fn endpoint_config(purpose: Use) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    if purpose == Use::Edge {
        // The peer's limit also caps our discovery, so both ends raise it. Control stays at the
        // default: its messages fit one small packet and its receive buffers stay small.
        config.max_udp_payload_size(MTU_MAX).expect("MTU_MAX lies within QUIC's bounds");
    }
    config
}

fn transport(purpose: Use, recv_buffer_bytes: usize) -> TransportConfig {
    let mut config = TransportConfig::default();
    // One long-lived bidirectional stream carries a whole conversation; datagrams gain nothing and
    // lose messages.
    config.max_concurrent_bidi_streams(VarInt::from_u32(1));
    config.max_concurrent_uni_streams(VarInt::from_u32(0));
    config.datagram_receive_buffer_size(None);
    config.keep_alive_interval(Some(KEEP_ALIVE));
    config.initial_rtt(INITIAL_RTT);
    let idle = match purpose {
        Use::Control => CONTROL_IDLE,
        Use::Edge => EDGE_IDLE,
    };
    config.max_idle_timeout(Some(idle.try_into().expect("seconds fit QUIC's timeout")));
    if purpose == Use::Control {
        return config;
    }

    // Discovery finds the large packets of Thunderbolt and jumbo Ethernet within 2 ms (18 µs less
    // per 12 KiB round trip than 1452 bytes); starting there instead would stall on a link of 1500.
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(MTU_MAX).black_hole_cooldown(Duration::from_secs(10));
    config.initial_mtu(MTU_INITIAL).mtu_discovery_config(Some(discovery));
    // One system call for several packets: 25 µs less per 12 KiB on a link of 1500. What this
    // switch must not meet is a packet of more than 6553 bytes on Linux; see MTU_MAX.
    // DAISY_UDP_GSO=off shows how a system without it fares, and works round a driver that loses them.
    let is_off = std::env::var_os("DAISY_UDP_GSO").is_some_and(|value| value == "off");
    config.enable_segmentation_offload(!is_off);

    // Fewer acknowledgements: 8 µs and a third of the CPU time less. A delay of 1 ms in place of
    // 25 ms bounds the wait before a lost packet is sent again: the tail after a loss drops from
    // 29 to 5 ms.
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(10));
    acks.max_ack_delay(Some(Duration::from_millis(1)));
    config.ack_frequency_config(Some(acks));

    // The congestion window does not grow while the application sends little, so a prefill chunk
    // after many decode steps would start from a window of two steps and be paced over many round
    // trips. It starts wide, but never wider than what the receiver's socket can hold.
    let window = INITIAL_WINDOW_BYTES.min(recv_buffer_bytes as u64 / 2).max(WINDOW_BYTES_MIN);
    let mut cubic = CubicConfig::default();
    cubic.initial_window(window);
    config.congestion_controller_factory(Arc::new(cubic));

    // A whole prefill chunk may be under way without waiting for the reader.
    config.stream_receive_window(VarInt::from_u32(16 << 20));
    config.receive_window(VarInt::from_u32(32 << 20));
    config.send_window(16 << 20);
    config
}

/// QUIC wants a name; keys are what counts.
pub(crate) const SERVER_NAME: &str = "daisy";

const SOCKET_BUFFER_BYTES: usize = 4 << 20;
const INITIAL_WINDOW_BYTES: u64 = 4 << 20;
/// Above one packet of [`MTU_MAX`]: a packet larger than the window would never leave.
const WINDOW_BYTES_MIN: u64 = 64 << 10;

/// What every network carries without fragmentation.
const MTU_INITIAL: u16 = 1200;
/// Largest UDP payload tried. On Linux ten packets go to the kernel as one buffer to cut, which must
/// stay below 64 KiB: with larger packets it would be refused, silently, and a 64 KiB message would
/// take 55 ms. 2 × 6500 still carries a 12 KiB hidden state. Without that buffer 8952 would be
/// possible, but bulk is slower then, and so is every link of 1500.
#[cfg(not(target_vendor = "apple"))]
const MTU_MAX: u16 = 6500;
/// macOS hands separate packets to the kernel in one call, so there is no common buffer; it refuses
/// datagrams above 9216 bytes, and 8952 is what fits a link of 9000.
#[cfg(target_vendor = "apple")]
const MTU_MAX: u16 = 8952;

/// Several per idle timeout: no single lost packet ends a connection.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// A node's control runtime is not starved by loading (ranks are other processes), but a machine with
/// more work than cores can keep a thread waiting for a second or two. A dead rank is noticed by its
/// edges within 2 s anyway; this is for a node that dies while nothing is loaded: with what was sent and not
/// answered the timer runs half a second longer, and people see it within 5 s.
pub(crate) const CONTROL_IDLE: Duration = Duration::from_millis(3500);
/// Loading starves a rank's timers. Once both ends are ready the link's own heartbeat decides, within
/// 2 s; this is for the time before.
const EDGE_IDLE: Duration = Duration::from_secs(10);
/// Guess until a round trip was measured: a lost first packet is sent again after 0.3 s in place of 1 s,
/// and a slow Wi-Fi (85 ms) still answers before that.
const INITIAL_RTT: Duration = Duration::from_millis(100);

/// Dials that wait for `accept`, and what each may buffer meanwhile.
const INCOMING_MAX: usize = 256;
const INCOMING_BYTES_MAX: u64 = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_packets_fit_one_buffer_of_the_kernel() {
        // quinn cuts at most ten segments; the limit is IPv4's 65,507 bytes of UDP payload.
        if cfg!(not(target_vendor = "apple")) {
            assert!(u32::from(MTU_MAX) * 10 <= 65_507);
        }
        assert!(u64::from(MTU_MAX) < WINDOW_BYTES_MIN, "a packet above the window never leaves");
    }

    #[test]
    fn a_small_socket_buffer_narrows_the_window() {
        for granted in [0, 1 << 20, 64 << 20] {
            let text = format!("{:?}", transport(Use::Edge, granted));
            assert!(text.contains("initial_mtu: 1200"), "{text}");
        }
    }
}
