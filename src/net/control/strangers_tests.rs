//! What strangers get: nothing, or the pairing protocol while a window is open, and never at the cost of
//! a trusted peer.

use daisy_proto::NodeName;
use daisy_proto::pair::{PAIR_BYTES, PairMessage, Secret};
use quinn::ReadError;

use super::tests::{
    PATIENCE, Raw, TrustNodes, closed, everyone, in_time, key, loopback, message, only,
};
use super::*;

fn node(key: &KeyPair, trust: TrustNodes, is_open: bool) -> ControlEndpoint {
    ControlEndpoint::bind(loopback(), key, trust, Arc::new(move || is_open), "test").unwrap()
}

fn open() -> PairMessage {
    let name = NodeName::new("stranger").unwrap();
    PairMessage::Open { secret: Secret::Code, share: [7; 33], name }
}

/// Application bytes that a dialer got before its end.
async fn bytes_back(dial: quinn::Connecting, say: &[u8]) -> usize {
    let Ok(connection) = dial.await else { return 0 };
    let Ok((mut send, mut recv)) = connection.open_bi().await else { return 0 };
    let _ = send.write_all(say).await;
    let mut count = 0;
    loop {
        match recv.read_chunk(READ_BYTES, true).await {
            Ok(Some(chunk)) => count += chunk.bytes.len(),
            Ok(None) | Err(ReadError::ConnectionLost(_)) => return count,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn an_unpaired_dial_gets_no_application_byte() {
    let hello = Hello::new(PROTOCOL_VERSION, "raw").unwrap().encode();
    let pair = open().encode();
    for is_open in [false, true] {
        let (ka, kb) = (key(), key());
        let a = node(&ka, only(&kb), is_open);
        let raw = Raw::new(&key());
        let control = raw.start(a.local_addr());
        assert_eq!(in_time(bytes_back(control, &hello)).await, 0, "window open: {is_open}");
        // An open window opens no other gate, whatever is said at it.
        let both = quinn_both(&raw, a.local_addr());
        assert_eq!(in_time(bytes_back(both, &hello)).await, 0, "window open: {is_open}");
        if !is_open {
            let pairing = raw.start_as(a.local_addr(), ALPN_PAIR);
            assert!(in_time(pairing).await.is_err(), "nobody speaks that now");
        }
        let data = raw.start_as(a.local_addr(), daisy_proto::ALPN_DATA);
        assert_eq!(in_time(bytes_back(data, &pair)).await, 0);
        // The right key through the right gate comes in.
        let b = node(&kb, only(&ka), false);
        in_time(b.dial(a.local_addr(), PATIENCE)).await.unwrap();
    }
}

/// A dial that asks for two protocols at once.
fn quinn_both(raw: &Raw, addr: SocketAddr) -> quinn::Connecting {
    let anyone: Trust = Arc::new(|_| true);
    let gates = [ALPN_PAIR, ALPN_CONTROL].map(|alpn| Gate::always(alpn, Arc::clone(&anyone)));
    let crypto = tls::client(&raw.key, Pin::for_guest(&gates)).unwrap();
    raw.endpoint.connect_with(quinn::ClientConfig::new(crypto), addr, SERVER_NAME).unwrap()
}

#[tokio::test]
async fn while_a_window_is_open_a_stranger_may_pair_and_both_ends_are_bound() {
    let (ka, kb) = (key(), key());
    let (a, b) = (node(&ka, only(&ka), true), node(&kb, only(&kb), false));
    let id = NodeId(ka.public());
    let addrs = [loopback(), a.local_addr()];
    let dial = async {
        let mut line = b.dial_pair(Some(id), &addrs, PATIENCE).await.unwrap().unwrap();
        line.send(&open()).await.unwrap();
        assert_eq!(line.recv().await.unwrap(), PairMessage::Done);
        line
    };
    let serve = async {
        let mut line = a.accept_pair().await.unwrap();
        assert_eq!(line.recv().await.unwrap(), open());
        line.send(&PairMessage::Done).await.unwrap();
        line
    };
    let (dialled, came) = in_time(async { tokio::join!(dial, serve) }).await;
    assert_eq!((dialled.peer, came.peer), (id, NodeId(kb.public())));
    assert_eq!(dialled.binding().unwrap(), came.binding().unwrap());
    drop(came);
    // Another node than the wanted one is not spoken to.
    let wanted = NodeId([9; 32]);
    let refused = in_time(b.dial_pair(Some(wanted), &[a.local_addr()], PATIENCE)).await.unwrap();
    assert!(refused.is_err());
    assert!(in_time(b.dial_pair(None, &[], PATIENCE)).await.is_none());
}

#[tokio::test]
async fn a_stranger_that_sends_without_end_is_not_held() {
    let (ka, kb) = (key(), key());
    let a = node(&ka, only(&kb), true);
    let raw = Raw::new(&key());
    let flood = async {
        let connection = raw.start_as(a.local_addr(), ALPN_PAIR).await.unwrap();
        let (mut send, _recv) = connection.open_bi().await.unwrap();
        let mut total = 0;
        // Ends when the other side has closed.
        while let Ok(count) = send.write(&[0xff; PAIR_BYTES * 64]).await {
            total += count;
        }
        total
    };
    let serve = async {
        let mut line = a.accept_pair().await.unwrap();
        assert_eq!(line.recv().await, Err(crate::net::PairLost::Nonsense));
        line.close(CloseReason::BadFrame);
    };
    let (sent, ()) = in_time(async { tokio::join!(flood, serve) }).await;
    assert!(sent < 8 << 20, "{sent} bytes were taken");
}

#[tokio::test]
async fn a_flood_at_an_open_window_does_not_stop_a_paired_peer() {
    let (ka, kb) = (key(), key());
    let (a, b) = (node(&ka, only(&kb), true), node(&kb, only(&ka), false));
    let (dialled, came) =
        in_time(async { tokio::join!(b.dial(a.local_addr(), PATIENCE), a.accept()) }).await;
    let (dialled, mut came) = (dialled.unwrap(), came.unwrap());
    let raw = Raw::new(&key());
    // Some say nothing, some say too little: each keeps a place until its time is over.
    let mut held = Vec::new();
    for n in 0..40 {
        let Ok(connection) = in_time(raw.start_as(a.local_addr(), ALPN_PAIR)).await else {
            continue;
        };
        if n % 2 == 0
            && let Ok((mut send, recv)) = connection.open_bi().await
        {
            let _ = send.write_all(&[1; 10]).await;
            held.push((send, recv));
        }
    }
    for call in 0..100 {
        dialled.send(&message(call)).await.unwrap();
        assert_eq!(in_time(came.recv()).await.unwrap(), message(call));
    }
    assert!(in_time(b.dial(a.local_addr(), PATIENCE)).await.is_ok(), "and it may come again");
}

/// A connection from one to the other, as both ends hold it.
async fn meet(
    from: &ControlEndpoint,
    to: &ControlEndpoint,
) -> (ControlConnection, ControlConnection) {
    let dial = from.dial(to.local_addr(), PATIENCE);
    let (dialled, came) = in_time(async { tokio::join!(dial, to.accept()) }).await;
    (dialled.unwrap(), came.unwrap())
}

#[tokio::test]
async fn unpairing_ends_open_connections_at_both_ends() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (ka, kb, kc) = (key(), key(), key());
    let trusted = Arc::new(AtomicBool::new(true));
    let unpaired = NodeId(kb.public());
    let trust: TrustNodes = {
        let trusted = Arc::clone(&trusted);
        Arc::new(move |id| *id != unpaired || trusted.load(Ordering::Relaxed))
    };
    let a = ControlEndpoint::bind(loopback(), &ka, trust, closed(), "a").unwrap();
    let (b, c) = (node(&kb, everyone(), false), node(&kc, everyone(), false));
    let (mut from_b, at_a) = meet(&b, &a).await;
    let (from_c, mut from_c_at_a) = meet(&c, &a).await;
    let (dialled, mut at_b) = meet(&a, &b).await;
    assert!(a.close_untrusted().is_empty());
    trusted.store(false, Ordering::Relaxed);
    assert_eq!(a.close_untrusted(), [unpaired, unpaired], "the one that came and the one dialled");
    for line in [&mut from_b, &mut at_b] {
        let lost = in_time(line.recv()).await.unwrap_err();
        assert_eq!(lost.cause, LostCause::Closed(CloseReason::NotTrusted));
    }
    assert!(at_a.send(&message(1)).await.is_err() && dialled.send(&message(1)).await.is_err());
    from_c.send(&message(2)).await.unwrap();
    assert_eq!(in_time(from_c_at_a.recv()).await.unwrap(), message(2), "others stay");
    let again = in_time(b.dial(a.local_addr(), PATIENCE)).await.unwrap_err();
    assert!(matches!(again, DialError::NotTrustedByPeer { .. }), "{again}");
}

#[tokio::test]
async fn a_node_is_found_by_its_key_among_wrong_addresses() {
    let (ka, kb, kc) = (key(), key(), key());
    let a = node(&ka, everyone(), false);
    let (b, c) = (node(&kb, everyone(), false), node(&kc, everyone(), false));
    let silent = std::net::UdpSocket::bind(loopback()).unwrap();
    let wrong = [silent.local_addr().unwrap(), c.local_addr()];
    let addrs = [wrong[0], wrong[1], b.local_addr()];
    let id = NodeId(kb.public());
    let found = in_time(a.dial_node(id, &addrs, PATIENCE)).await.unwrap().unwrap();
    assert_eq!((found.peer, found.remote), (id, b.local_addr()));
    let missed = in_time(a.dial_node(id, &wrong, Duration::from_millis(300))).await.unwrap();
    let error = missed.unwrap_err();
    assert!(matches!(error, DialError::OtherNode { wanted, .. } if wanted == id), "{error}");
    assert!(in_time(a.dial_node(id, &[], PATIENCE)).await.is_none());
}
