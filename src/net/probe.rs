//! Measures one path as a rank's edge would use it: the same transport settings, keys pinned, bound to
//! one interface.
//!
//! A listener echoes small messages and swallows bursts, for trusted nodes, a few at a time and each
//! for a bounded time. This module does not know which paths are worth a measurement, nor what their
//! figures mean. Start at [`ProbeListener::bind`] and [`probe`].
//!
//! ```text
//! dialler: echo u8 = 0 | 16 bytes        listener: the same 16 bytes
//! dialler: burst u8 = 1 | bytes … end    listener: count u64 LE
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use daisy_proto::control::Way;
use daisy_proto::{ALPN_PROBE, CloseReason, NodeId, Sample};
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::NetError;
use super::door::Door;
use super::ending::close;
use super::tls::{self, Gate, KeyPair, Pin, Trust};
use super::transport::{self, Open, SERVER_NAME, Use};

/// Answers measurements until it is dropped.
#[derive(Debug)]
pub struct ProbeListener {
    port: u16,
    tasks: [AbortHandle; 2],
}

impl ProbeListener {
    /// Listens on a free port of `ip`. Must be called within a Tokio runtime.
    pub fn bind(
        ip: IpAddr,
        key: &KeyPair,
        trust: Arc<dyn Fn(&NodeId) -> bool + Send + Sync>,
    ) -> Result<Self, NetError> {
        let addr = SocketAddr::new(ip, 0);
        let failed = |error| NetError::bind(addr, error);
        let trust: Trust = Arc::new(move |key| trust(&NodeId(*key)));
        let door = Door::new(key, vec![Gate::always(ALPN_PROBE, trust)])?;
        let socket = transport::bind(addr, None).map_err(failed)?;
        let open =
            transport::open(socket, Use::Edge, Some(door.server_config())).map_err(failed)?;
        let port = open.endpoint.local_addr().map_err(failed)?.port();
        let (guests_in, mut guests) = mpsc::channel(1);
        let welcome = |connection: Connection, _shown| async {
            let (send, recv) = connection.accept_bi().await.ok()?;
            Some((connection, send, recv))
        };
        let door = tokio::spawn(door.run(open, welcome, guests_in)).abort_handle();
        let places = Arc::new(Semaphore::new(GUESTS_MAX));
        let answering = tokio::spawn(async move {
            while let Some((connection, send, recv)) = guests.recv().await {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    close(&connection, CloseReason::Busy);
                    continue;
                };
                tokio::spawn(async move {
                    let _ = timeout(GUEST_TIME_MAX, answer(send, recv)).await;
                    close(&connection, CloseReason::Done);
                    drop(place);
                });
            }
        });
        Ok(Self { port, tasks: [door, answering.abort_handle()] })
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for ProbeListener {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

async fn answer(mut send: SendStream, mut recv: RecvStream) -> Option<()> {
    loop {
        let mut kind = [0];
        recv.read_exact(&mut kind).await.ok()?;
        if kind[0] == ECHO {
            let mut ping = [0; PING_BYTES];
            recv.read_exact(&mut ping).await.ok()?;
            send.write_all(&ping).await.ok()?;
            continue;
        }
        let mut count = 0;
        while let Some(chunk) = recv.read_chunk(usize::MAX, true).await.ok()? {
            count += chunk.bytes.len() as u64;
        }
        send.write_all(&count.to_le_bytes()).await.ok()?;
        send.finish().ok()?;
        // Until the dialler has the count and closes.
        let _ = send.stopped().await;
        return Some(());
    }
}

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Whether anything comes through: a handshake and a few round trips.
    Reach,
    /// Enough round trips for a median: a few hundred small packets.
    Latency,
    /// Then a burst of at most 8 MiB.
    Bandwidth,
}

/// Dials `peer` by `way` and measures. The error says why nothing came through, without its address.
pub async fn probe(key: &KeyPair, peer: NodeId, way: &Way, depth: Depth) -> Result<Sample, String> {
    let (open, connection, send, recv) =
        timeout(DIAL_MAX, dial(key, peer, way)).await.map_err(|_| "no answer".to_owned())??;
    let measured = timeout(MEASURE_MAX, measure(send, recv, depth)).await;
    close(&connection, CloseReason::Done);
    // The other end frees its place at once instead of after a timeout.
    let _ = timeout(CLOSE_WAIT, open.endpoint.wait_idle()).await;
    measured.map_err(|_| "it broke off".to_owned())?
}

async fn dial(
    key: &KeyPair,
    peer: NodeId,
    way: &Way,
) -> Result<(Open, Connection, SendStream, RecvStream), String> {
    let any: IpAddr = if way.addr.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let local = |error: std::io::Error| error.to_string();
    let socket = transport::bind(SocketAddr::new(any, 0), way.device.as_ref()).map_err(local)?;
    let open = transport::open(socket, Use::Edge, None).map_err(local)?;
    let pin = Pin::for_dial(ALPN_PROBE, Arc::new(move |key| *key == peer.0));
    let crypto = tls::client(key, Arc::clone(&pin)).map_err(|error| error.to_string())?;
    let mut config = quinn::ClientConfig::new(crypto);
    config.transport_config(Arc::clone(&open.transport));
    let connecting = open
        .endpoint
        .connect_with(config, way.addr, SERVER_NAME)
        .map_err(|error| error.to_string())?;
    let connection = connecting.await.map_err(|error| match error {
        ConnectionError::TimedOut => "no answer".to_owned(),
        _ if pin.shown().is_some_and(|shown| !shown.trusted) => "another node answers".to_owned(),
        other => other.to_string(),
    })?;
    let (send, recv) = connection.open_bi().await.map_err(|error| error.to_string())?;
    Ok((open, connection, send, recv))
}

async fn measure(
    mut send: SendStream,
    mut recv: RecvStream,
    depth: Depth,
) -> Result<Sample, String> {
    let probes = if depth == Depth::Reach { 1 } else { PROBES };
    let mut trips = Vec::with_capacity(probes);
    for number in 0..WARM_UPS + probes {
        let mut ping = [0; 1 + PING_BYTES];
        ping[0] = ECHO;
        let began = Instant::now();
        send.write_all(&ping).await.map_err(|error| error.to_string())?;
        recv.read_exact(&mut ping[1..]).await.map_err(|error| error.to_string())?;
        if number >= WARM_UPS {
            trips.push(began.elapsed());
        }
    }
    trips.sort_unstable();
    let micros = |trip: Duration| u32::try_from(trip.as_micros()).unwrap_or(u32::MAX);
    let median = trips[trips.len() / 2];
    let bit_per_s = match depth {
        Depth::Reach | Depth::Latency => 0,
        Depth::Bandwidth => burst(send, recv, median).await?,
    };
    Ok(Sample {
        rtt_median_us: micros(median),
        rtt_worst_us: micros(trips[trips.len() - 1]),
        probes: u16::try_from(trips.len()).unwrap_or(u16::MAX),
        bit_per_s,
    })
}

/// As much as goes in a tenth of a second, at most [`BURST_BYTES_MAX`].
async fn burst(mut send: SendStream, mut recv: RecvStream, rtt: Duration) -> Result<u64, String> {
    let chunk = Bytes::from(vec![0; CHUNK_BYTES]);
    let began = Instant::now();
    send.write_all(&[BURST]).await.map_err(|error| error.to_string())?;
    let mut written = 0;
    while written < BURST_BYTES_MAX && began.elapsed() < BURST_TIME {
        send.write_chunk(chunk.clone()).await.map_err(|error| error.to_string())?;
        written += CHUNK_BYTES;
    }
    send.finish().map_err(|error| error.to_string())?;
    let mut count = [0; 8];
    recv.read_exact(&mut count).await.map_err(|error| error.to_string())?;
    // The first byte's way there and the count's way back are no part of the rate.
    let took = began.elapsed().saturating_sub(rtt).max(Duration::from_micros(1));
    let bits = u128::from(u64::from_le_bytes(count)) * 8 * 1_000_000;
    Ok(u64::try_from(bits / took.as_micros().max(1)).unwrap_or(u64::MAX))
}

const ECHO: u8 = 0;
const BURST: u8 = 1;
const PING_BYTES: usize = 16;
/// The first ones find the packet size and fill neighbour tables.
const WARM_UPS: usize = 5;
const PROBES: usize = 51;
const CHUNK_BYTES: usize = 64 << 10;
const BURST_BYTES_MAX: usize = 8 << 20;
const BURST_TIME: Duration = Duration::from_millis(100);
/// A path that needs longer for its handshake is none for hidden states.
const DIAL_MAX: Duration = Duration::from_secs(2);
/// 56 round trips of a bad Wi-Fi (85 ms) and the burst.
const MEASURE_MAX: Duration = Duration::from_secs(10);
const CLOSE_WAIT: Duration = Duration::from_millis(200);
/// Both ends' paths at once, with room for a second node.
const GUESTS_MAX: usize = 64;
const GUEST_TIME_MAX: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(id: NodeId) -> Arc<dyn Fn(&NodeId) -> bool + Send + Sync> {
        Arc::new(move |key| *key == id)
    }

    fn way(ip: &str, port: u16) -> Way {
        Way { addr: SocketAddr::new(ip.parse().expect("an ip"), port), device: None }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_path_is_measured_between_those_who_know_each_other() {
        let (a, b, c) = (KeyPair::generate(), KeyPair::generate(), KeyPair::generate());
        let (a, b, c) = (a.expect("a key"), b.expect("a key"), c.expect("a key"));
        let id = |key: &KeyPair| NodeId(key.public());
        let listener = ProbeListener::bind(Ipv4Addr::LOCALHOST.into(), &b, trust(id(&a)));
        let listener = listener.expect("it listens");
        let there = way("127.0.0.1", listener.port());
        let sample = probe(&a, id(&b), &there, Depth::Bandwidth).await.expect("it answers");
        assert!(sample.probes >= 50 && sample.rtt_median_us > 0, "{sample:?}");
        assert!(sample.rtt_worst_us >= sample.rtt_median_us && sample.bit_per_s > 0, "{sample:?}");
        let sample = probe(&a, id(&b), &there, Depth::Latency).await.expect("it answers");
        assert_eq!(sample.bit_per_s, 0);
        let wrong = probe(&a, id(&c), &there, Depth::Latency).await;
        assert_eq!(wrong, Err("another node answers".to_owned()));
        probe(&c, id(&b), &there, Depth::Latency).await.expect_err("a stranger is refused");
        let port = listener.port();
        drop(listener);
        let gone = probe(&a, id(&b), &way("127.0.0.1", port), Depth::Latency).await;
        assert_eq!(gone, Err("no answer".to_owned()));
    }

    #[tokio::test]
    async fn an_interface_that_is_not_there_leads_nowhere() {
        let (a, b) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
        let device = daisy_proto::Device { name: "nosuch0".to_owned(), index: 4_000_000 };
        let way = Way { device: Some(device), ..way("127.0.0.1", 9) };
        probe(&a, NodeId(b.public()), &way, Depth::Latency).await.expect_err("no device");
    }
}
