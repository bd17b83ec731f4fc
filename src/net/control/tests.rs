//! Real QUIC on loopback: who gets in, who does not, and what each side is told.

use std::sync::atomic::{AtomicBool, Ordering};

use daisy_proto::PipelineId;
use daisy_proto::control::{Event, Message, Request};
use daisy_proto::local::RankStart;
use quinn::Endpoint;

use daisy_proto::local::Budget;

use super::*;

pub(super) type TrustNodes = Arc<dyn Fn(&NodeId) -> bool + Send + Sync>;

pub(super) fn everyone() -> TrustNodes {
    Arc::new(|_| true)
}

pub(super) fn nobody() -> TrustNodes {
    Arc::new(|_| false)
}

pub(super) fn only(key: &KeyPair) -> TrustNodes {
    let id = NodeId(key.public());
    Arc::new(move |candidate| *candidate == id)
}

pub(super) fn closed() -> Arc<dyn Fn() -> bool + Send + Sync> {
    Arc::new(|| false)
}

pub(super) fn key() -> KeyPair {
    KeyPair::generate().unwrap()
}

pub(super) fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn node(key: &KeyPair, trust: TrustNodes) -> ControlEndpoint {
    ControlEndpoint::bind(loopback(), key, trust, closed(), "0.1.0+test").unwrap()
}

/// Long enough for a machine that runs many tests at once; nothing waits for it when all is well.
pub(super) const PATIENCE: Duration = Duration::from_secs(8);

pub(super) async fn in_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("must not hang")
}

pub(super) fn message(call: u64) -> Message {
    Message::Request { call, request: Request::Stop { pipeline: PipelineId(call) } }
}

fn text_of(error: &DialError) -> String {
    error.to_string()
}

#[tokio::test]
async fn a_trusted_pair_talks_both_ways() {
    let (ka, kb) = (key(), key());
    let (a, b) = (node(&ka, only(&kb)), node(&kb, only(&ka)));
    let (dialled, came) =
        in_time(async { tokio::join!(a.dial(b.local_addr(), PATIENCE), b.accept()) }).await;
    let (dialled, came) = (dialled.unwrap(), came.unwrap());
    assert_eq!((dialled.peer, came.peer), (NodeId(kb.public()), NodeId(ka.public())));
    assert_eq!((dialled.build.as_str(), came.remote), ("0.1.0+test", a.local_addr()));

    let ((send_a, mut recv_a), (send_b, mut recv_b)) = (dialled.split(), came.split());
    for call in 0..100 {
        send_a.send(&message(call)).await.unwrap();
        send_b.clone().send(&message(1000 + call)).await.unwrap();
    }
    for call in 0..100 {
        assert_eq!(in_time(recv_b.recv()).await.unwrap(), message(call));
        assert_eq!(in_time(recv_a.recv()).await.unwrap(), message(1000 + call));
    }

    b.close().await;
    let lost = in_time(recv_a.recv()).await.unwrap_err();
    assert_eq!(lost.cause, LostCause::Closed(CloseReason::Draining));
    assert!(lost.is_orderly() && lost.to_string().contains(&NodeId(kb.public()).short()), "{lost}");
    assert!(in_time(b.accept()).await.is_none(), "a closed endpoint lets nobody in");
    assert!(send_a.send(&message(1)).await.is_err());
}

#[tokio::test]
async fn a_message_above_the_limit_is_refused_before_it_leaves() {
    let (ka, kb) = (key(), key());
    let (a, b) = (node(&ka, only(&kb)), node(&kb, only(&ka)));
    let (dialled, came) = tokio::join!(a.dial(b.local_addr(), PATIENCE), b.accept());
    let (send, mut recv) = (dialled.unwrap(), came.unwrap());
    let start = |length| RankStart {
        pipeline: PipelineId(1),
        rank: daisy_proto::Rank(1),
        world: 2,
        shard: daisy_proto::Shard::of(daisy_proto::Rank(1), daisy_proto::LayerRange::new(0, 1)),
        checkpoint: "x".repeat(length).into(),
        dtype: None,
        bind: loopback(),
        budget: Budget { sequences: 4, tokens: 1024 },
        needs_bytes: 0,
        chunk: 1,
    };
    let big = Message::Request { call: 1, request: Request::Stage(start(100_000)) };
    assert!(matches!(send.send(&big).await.unwrap_err().cause, LostCause::Frame(_)));
    let fits = Message::Request { call: 2, request: Request::Stage(start(50_000)) };
    send.send(&fits).await.unwrap();
    assert_eq!(in_time(recv.recv()).await.unwrap(), fits, "the stream is still whole");
}

#[tokio::test]
async fn refusals_say_who_does_not_trust_whom() {
    let (ka, kb) = (key(), key());
    let (a_id, b_id) = (NodeId(ka.public()), NodeId(kb.public()));

    let (a, b) = (node(&ka, nobody()), node(&kb, everyone()));
    let error = in_time(a.dial(b.local_addr(), PATIENCE)).await.unwrap_err();
    assert!(matches!(error, DialError::Untrusted { peer, .. } if peer == b_id), "{error:?}");
    let remedy = format!("`daisy cluster trust {b_id}`");
    assert!(text_of(&error).contains(&remedy), "{error}");
    assert!(text_of(&error).contains(&b.local_addr().to_string()), "{error}");

    let (a, b) = (node(&ka, everyone()), node(&kb, nobody()));
    let error = in_time(a.dial(b.local_addr(), PATIENCE)).await.unwrap_err();
    assert!(
        matches!(error, DialError::NotTrustedByPeer { peer, us, .. } if (peer, us) == (b_id, a_id)),
        "{error:?}"
    );
    let remedy = format!("there `daisy cluster trust {a_id}`");
    assert!(text_of(&error).contains(&remedy), "{error}");
    assert_eq!(b.refused(), 1);
}

#[tokio::test]
async fn trust_that_comes_later_counts() {
    let (ka, kb) = (key(), key());
    let is_trusted = Arc::new(AtomicBool::new(false));
    let trust = Arc::clone(&is_trusted);
    let a = node(&ka, everyone());
    let b = node(&kb, Arc::new(move |_| trust.load(Ordering::Relaxed)));
    assert!(in_time(a.dial(b.local_addr(), PATIENCE)).await.is_err());
    is_trusted.store(true, Ordering::Relaxed);
    assert!(in_time(a.dial(b.local_addr(), PATIENCE)).await.is_ok());
}

#[tokio::test]
async fn a_node_does_not_talk_to_itself() {
    let key = key();
    let a = node(&key, everyone());
    let error = in_time(a.dial(a.local_addr(), PATIENCE)).await.unwrap_err();
    assert!(matches!(error, DialError::ItIsMe { .. }), "{error:?}");
}

#[tokio::test]
async fn another_version_is_named_on_both_sides() {
    for (ours, theirs) in [(1, 2), (2, 1)] {
        let (ka, kb) = (key(), key());
        let bind = |key, trust, version| {
            let hello = Hello::new(version, format!("build-{version}")).unwrap();
            ControlEndpoint::bind_as(loopback(), key, trust, closed(), hello).unwrap()
        };
        let (a, b) = (bind(&ka, only(&kb), ours), bind(&kb, only(&ka), theirs));
        let error = in_time(a.dial(b.local_addr(), PATIENCE)).await.unwrap_err();
        assert!(matches!(error, DialError::Version { .. }), "{error:?}");
        for part in ["protocol 1", "protocol 2", "build-1", "build-2", "update"] {
            assert!(text_of(&error).contains(part), "{error}");
        }
        assert_eq!(b.refused(), 1, "the listener logs it too");
    }
}

#[tokio::test]
async fn silence_and_a_closed_port_are_told_apart() {
    let a = node(&key(), everyone());
    let silent = std::net::UdpSocket::bind(loopback()).unwrap();
    let addr = silent.local_addr().unwrap();
    let error = in_time(a.dial(addr, Duration::from_millis(200))).await.unwrap_err();
    assert!(matches!(error, DialError::Unreachable { cause: None, .. }), "{error:?}");
    assert!(text_of(&error).contains(&addr.to_string()), "{error}");

    drop(silent);
    let error = in_time(a.dial(addr, Duration::from_millis(200))).await.unwrap_err();
    assert!(text_of(&error).contains("nothing listens"), "{error}");
}

#[tokio::test]
async fn a_rank_is_not_a_node() {
    let (ka, kb) = (key(), key());
    let door =
        Door::new(&kb, vec![Gate::always(daisy_proto::ALPN_DATA, Arc::new(|_| true))]).unwrap();
    let socket = transport::bind(loopback(), None).unwrap();
    let addr = socket.local_addr().unwrap();
    let open = transport::open(socket, Use::Edge, Some(door.server_config())).unwrap();
    let (sender, _guests) = mpsc::channel(1);
    tokio::spawn(door.run(open, |_, _| async { Some(()) }, sender));
    let error = in_time(node(&ka, everyone()).dial(addr, PATIENCE)).await.unwrap_err();
    assert!(matches!(error, DialError::NotANode { .. }), "{error:?}");
}

#[tokio::test]
async fn a_dropped_endpoint_gives_its_port_back() {
    let key = key();
    let a = node(&key, everyone());
    let addr = a.local_addr();
    drop(a);
    in_time(async {
        while ControlEndpoint::bind(addr, &key, everyone(), closed(), "0").is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_other_address_family_is_named() {
    let a = node(&key(), everyone());
    let error = in_time(a.dial("[::1]:9".parse().unwrap(), PATIENCE)).await.unwrap_err();
    assert!(text_of(&error).contains("IPv4 alone"), "{error}");
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let taken = std::net::UdpSocket::bind(loopback()).unwrap();
    let addr = taken.local_addr().unwrap();
    let error = ControlEndpoint::bind(addr, &key(), everyone(), closed(), "0").unwrap_err();
    assert!(matches!(error, NetError::PortTaken { addr: named } if named == addr), "{error}");
    assert!(error.to_string().contains("choose another port"), "{error}");
    let foreign = "192.0.2.1:0".parse().unwrap();
    let error = ControlEndpoint::bind(foreign, &key(), everyone(), closed(), "0").unwrap_err();
    assert!(matches!(error, NetError::NotMyAddress { .. }), "{error}");
}

/// A client below the level of [`ControlEndpoint`], to behave badly with.
pub(super) struct Raw {
    pub(super) endpoint: Endpoint,
    pub(super) key: KeyPair,
}

impl Raw {
    pub(super) fn new(key: &KeyPair) -> Self {
        let socket = transport::bind(loopback(), None).unwrap();
        let open = transport::open(socket, Use::Control, None).unwrap();
        Self { endpoint: open.endpoint, key: key.clone() }
    }

    pub(super) fn start(&self, addr: SocketAddr) -> quinn::Connecting {
        self.start_as(addr, ALPN_CONTROL)
    }

    pub(super) fn start_as(&self, addr: SocketAddr, alpn: &'static [u8]) -> quinn::Connecting {
        let crypto = tls::client(&self.key, Pin::for_dial(alpn, Arc::new(|_| true))).unwrap();
        self.endpoint.connect_with(quinn::ClientConfig::new(crypto), addr, SERVER_NAME).unwrap()
    }
}

#[tokio::test]
async fn guests_that_say_nothing_do_not_hold_up_others() {
    let (ka, kb) = (key(), key());
    let (a, b) = (node(&ka, everyone()), node(&kb, everyone()));
    let raw = Raw::new(&key());
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(in_time(raw.start(b.local_addr())).await.unwrap());
    }
    in_time(a.dial(b.local_addr(), PATIENCE)).await.unwrap();
    assert_eq!(in_time(b.accept()).await.unwrap().peer, NodeId(ka.public()));
}

#[tokio::test]
async fn garbage_after_a_good_start_ends_that_connection_alone() {
    let (ka, kb) = (key(), key());
    let (a, b) = (node(&ka, everyone()), node(&kb, everyone()));
    let dial = async {
        let raw = Raw::new(&key());
        let connection = raw.start(b.local_addr()).await.unwrap();
        let (mut send, _recv) = connection.open_bi().await.unwrap();
        let hello = Hello::new(PROTOCOL_VERSION, "raw").unwrap().encode();
        send.write_all(&[&hello[..], &[0xff; 64]].concat()).await.unwrap();
        connection.closed().await
    };
    let serve = async {
        let mut guest = b.accept().await.unwrap();
        assert_eq!(guest.build, "raw");
        guest.recv().await.unwrap_err()
    };
    let (told, lost) = in_time(async { tokio::join!(dial, serve) }).await;
    assert!(matches!(lost.cause, LostCause::Frame(_)), "{lost}");
    let ConnectionError::ApplicationClosed(told) = told else { panic!("{told}") };
    assert_eq!(reason_of(told.error_code), CloseReason::BadFrame);
    assert!(in_time(a.dial(b.local_addr(), PATIENCE)).await.is_ok());
}

#[tokio::test]
async fn a_flood_does_not_stop_service() {
    let (ka, kb) = (key(), key());
    let (a, b) = (node(&ka, everyone()), node(&kb, only(&ka)));

    // First packets of real dials, caught by a socket that never answers.
    let catcher = UdpSocket::bind(loopback()).await.unwrap();
    let raw = Raw::new(&key());
    let addr = catcher.local_addr().unwrap();
    let dials: Vec<_> = (0..300).map(|_| raw.start(addr)).collect();
    let hostile = UdpSocket::bind(loopback()).await.unwrap();
    let mut packet = [0; 2048];
    for n in 0..600_usize {
        let (length, _) = in_time(catcher.recv_from(&mut packet)).await.unwrap();
        hostile.send_to(&packet[..length], b.local_addr()).await.unwrap();
        // And noise: cut short, wrong from the first byte, or a damaged first packet.
        packet[n % length] ^= 0x55;
        hostile.send_to(&packet[..n % length], b.local_addr()).await.unwrap();
        hostile.send_to(&packet[..length], b.local_addr()).await.unwrap();
    }
    drop(dials);
    let (dialled, came) =
        in_time(async { tokio::join!(a.dial(b.local_addr(), PATIENCE), b.accept()) }).await;
    let (dialled, mut came) = (dialled.unwrap(), came.unwrap());
    let event = Message::Event(Event::Exited {
        pipeline: PipelineId(1),
        rank: daisy_proto::Rank(1),
        reason: "x".to_owned(),
        blame: None,
    });
    dialled.send(&event).await.unwrap();
    assert_eq!(in_time(came.recv()).await.unwrap(), event);
}
