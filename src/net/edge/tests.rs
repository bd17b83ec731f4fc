//! Two ranks on loopback, with real QUIC and real threads.

use std::net::Ipv4Addr;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use daisy_proto::{Dtype, Row, SeqId};

use super::*;

const PIPELINE: PipelineId = PipelineId(7);
/// Long enough for a machine that runs many tests at once; nothing waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(10);

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn config(me: u32, peer: u32, peer_key: &KeyPair) -> EdgeConfig {
    EdgeConfig {
        pipeline: PIPELINE,
        me: Rank(me),
        peer: Rank(peer),
        peer_key: RankKey(peer_key.public()),
        connect_timeout: PATIENCE,
    }
}

fn step(number: u64, tokens: u32, width: u32) -> (Step, Bytes) {
    let fill = u8::try_from(number % 251).unwrap();
    let payload = Bytes::from(vec![fill; (tokens * width) as usize * 4]);
    let row = Row { seq: SeqId(1), first: 0, count: tokens, logits: true };
    let rows = if tokens == 0 { Vec::new() } else { vec![row] };
    let release = vec![SeqId(number)];
    let step = Step { pipeline: PIPELINE, number, rows, release, dtype: Dtype::F32, tokens, width };
    (step, payload)
}

/// Rank 0 with an edge to rank 1.
struct Pair {
    out: OutgoingEdge,
    out_events: Receiver<EdgeEvent>,
    incoming: IncomingEdge,
    in_events: Receiver<EdgeEvent>,
}

/// Each rank of a test has its own, as a process has.
fn reactor() -> Reactor {
    Reactor::start().unwrap()
}

fn events() -> (Sender<EdgeEvent>, Receiver<EdgeEvent>) {
    channel()
}

fn sink(events: Sender<EdgeEvent>) -> impl Fn(EdgeEvent) + Send + Sync + 'static {
    move |event| drop(events.send(event))
}

fn pair_with(change_dialer: impl Fn(&mut EdgeConfig)) -> Pair {
    let (k0, k1) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let listener = EdgeListener::bind(loopback(), &k1).unwrap();
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port()));
    let ((in_sink, in_events), (out_sink, out_events)) = (events(), events());
    let incoming = accept(&reactor(), listener, config(1, 0, &k0), sink(in_sink));
    let mut dialer = config(0, 1, &k1);
    change_dialer(&mut dialer);
    let out = dial(&reactor(), &k0, vec![addr], dialer, sink(out_sink));
    Pair { out, out_events, incoming, in_events }
}

fn pair() -> Pair {
    pair_with(|_| {})
}

fn next(events: &Receiver<EdgeEvent>) -> EdgeEvent {
    events.recv_timeout(PATIENCE).expect("an event must come")
}

fn failure(events: &Receiver<EdgeEvent>) -> String {
    match next(events) {
        EdgeEvent::Failed { message } => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn steps_arrive_whole_and_in_order() {
    let pair = pair();
    // Nothing, 12 KiB (one decode step), 4 MiB (a prefill chunk), and many small ones.
    let mut shapes = vec![(0, 3072), (1, 3072), (512, 2048), (1, 3072), (0, 1)];
    shapes.extend([(1, 576); 100]);
    assert_eq!(next(&pair.out_events), EdgeEvent::Open);
    assert_eq!(next(&pair.in_events), EdgeEvent::Open);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (number, (tokens, width)) in (0..).zip(&shapes) {
                let (step, payload) = step(number, *tokens, *width);
                pair.out.send(step, payload).unwrap();
            }
        });
        for (number, (tokens, width)) in (0..).zip(&shapes) {
            let (step, payload) = step(number, *tokens, *width);
            assert!(next(&pair.in_events) == EdgeEvent::Step(step, payload), "step {number}");
        }
    });
}

#[test]
fn steps_queued_before_the_edge_is_open_are_sent() {
    let pair = pair();
    let (step, payload) = step(0, 1, 8);
    pair.out.send(step.clone(), payload.clone()).unwrap();
    assert_eq!(next(&pair.in_events), EdgeEvent::Open);
    assert_eq!(next(&pair.in_events), EdgeEvent::Step(step, payload));
}

#[test]
fn a_close_reason_travels_in_both_directions() {
    let a = pair();
    assert_eq!((next(&a.out_events), next(&a.in_events)), (EdgeEvent::Open, EdgeEvent::Open));
    a.out.close(CloseReason::Done);
    assert_eq!(next(&a.in_events), EdgeEvent::Closed(CloseReason::Done));
    let (step, payload) = step(0, 1, 8);
    while a.out.send(step.clone(), payload.clone()).is_ok() {}
    assert!(a.out_events.recv_timeout(PATIENCE).is_err(), "one's own close is no event");

    let b = pair();
    assert_eq!((next(&b.out_events), next(&b.in_events)), (EdgeEvent::Open, EdgeEvent::Open));
    b.incoming.close(CloseReason::EngineFailed);
    assert_eq!(next(&b.out_events), EdgeEvent::Closed(CloseReason::EngineFailed));
}

#[test]
fn a_dropped_edge_is_a_failure_at_the_other_end() {
    let Pair { out, out_events, incoming, in_events } = pair();
    assert_eq!((next(&out_events), next(&in_events)), (EdgeEvent::Open, EdgeEvent::Open));
    let started = Instant::now();
    drop(out);
    assert!(started.elapsed() < JOIN_WAIT, "drop waits for the farewell only");
    assert_eq!(next(&in_events), EdgeEvent::Closed(CloseReason::Unstated));
    drop(incoming);
}

#[test]
fn an_edge_that_is_not_connected_can_be_dropped() {
    let key = KeyPair::generate().unwrap();
    let silent = UdpSocket::bind(loopback()).unwrap();
    let addrs = vec![silent.local_addr().unwrap()];
    let started = Instant::now();
    drop(dial(&reactor(), &key, addrs, config(0, 1, &key), |_| {}));
    let listener = EdgeListener::bind(loopback(), &key).unwrap();
    drop(accept(&reactor(), listener, config(1, 0, &key), |_| {}));
    assert!(started.elapsed() < JOIN_WAIT);
}

#[test]
fn only_the_pinned_key_gets_in() {
    let keys: Vec<_> = (0..3).map(|_| KeyPair::generate().unwrap()).collect();
    let [k0, k1, stranger] = &keys[..] else { panic!() };
    let listener = EdgeListener::bind(loopback(), k1).unwrap();
    let addr = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port()))];
    let (in_sink, in_events) = events();
    let _incoming = accept(&reactor(), listener, config(1, 0, k0), sink(in_sink));

    // A stranger that knows rank 1's key, and rank 0 that expects somebody else.
    let (out_sink, out_events) = events();
    let strangers = dial(&reactor(), stranger, addr.clone(), config(0, 1, k1), sink(out_sink));
    let message = failure(&out_events);
    assert!(message.contains("rank 1") && message.contains("another key"), "{message}");
    drop(strangers);
    let (out_sink, out_events) = events();
    let mistaken = dial(&reactor(), k0, addr.clone(), config(0, 1, stranger), sink(out_sink));
    let message = failure(&out_events);
    assert!(message.contains(&addr[0].to_string()) && message.contains("another key"), "{message}");
    drop(mistaken);

    let (out_sink, out_events) = events();
    let _out = dial(&reactor(), k0, addr, config(0, 1, k1), sink(out_sink));
    assert_eq!((next(&out_events), next(&in_events)), (EdgeEvent::Open, EdgeEvent::Open));
}

#[test]
fn another_pipeline_or_rank_is_refused_at_both_ends() {
    let changes: [fn(&mut EdgeConfig); 2] =
        [|config| config.pipeline = PipelineId(8), |config| config.me = Rank(5)];
    for (change, reason) in changes.iter().zip([CloseReason::WrongPipeline, CloseReason::WrongRank])
    {
        let pair = pair_with(change);
        let message = failure(&pair.in_events);
        assert!(message.contains("edge from rank 0 at 127.0.0.1"), "{message}");
        assert_eq!(next(&pair.out_events), EdgeEvent::Closed(reason));
    }
}

#[test]
fn the_address_that_answers_is_taken() {
    let (k0, k1) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let other_rank = EdgeListener::bind(loopback(), &k0).unwrap();
    let silent = UdpSocket::bind(loopback()).unwrap();
    let listener = EdgeListener::bind(loopback(), &k1).unwrap();
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let addrs = vec![silent.local_addr().unwrap(), at(other_rank.port()), at(listener.port())];
    let (in_sink, in_events) = events();
    let _wrong = accept(&reactor(), other_rank, config(1, 0, &k0), |_| {});
    let _right = accept(&reactor(), listener, config(1, 0, &k0), sink(in_sink));
    let (out_sink, out_events) = events();
    let _out = dial(&reactor(), &k0, addrs, config(0, 1, &k1), sink(out_sink));
    assert_eq!((next(&out_events), next(&in_events)), (EdgeEvent::Open, EdgeEvent::Open));
}

#[test]
fn a_peer_that_never_comes_is_named() {
    let key = KeyPair::generate().unwrap();
    let short = EdgeConfig { connect_timeout: Duration::from_millis(200), ..config(1, 0, &key) };
    let (in_sink, in_events) = events();
    let _incoming =
        accept(&reactor(), EdgeListener::bind(loopback(), &key).unwrap(), short, sink(in_sink));
    let message = failure(&in_events);
    assert!(message.contains("edge from rank 0") && message.contains("0.2 s"), "{message}");

    let silent = UdpSocket::bind(loopback()).unwrap();
    let addr = silent.local_addr().unwrap();
    let short = EdgeConfig { peer: Rank(1), me: Rank(0), ..short };
    for (addrs, named) in [(vec![addr], addr.to_string()), (vec![], "no address".to_owned())] {
        let (out_sink, out_events) = events();
        let _out = dial(&reactor(), &key, addrs, short, sink(out_sink));
        let message = failure(&out_events);
        assert!(message.contains("edge to rank 1") && message.contains(&named), "{message}");
    }
}

#[test]
fn a_frozen_peer_is_lost_within_three_seconds() {
    let (k0, k1) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let listener = EdgeListener::bind(loopback(), &k1).unwrap();
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port()));
    // The sink runs on the thread of the edges: while it waits, all of them stand still, as a stopped
    // process does.
    let (thaw, frozen) = channel::<()>();
    let frozen = Mutex::new(frozen);
    let incoming = accept(&reactor(), listener, config(1, 0, &k0), move |event| {
        if matches!(event, EdgeEvent::Step(..)) {
            let _ = frozen.lock().unwrap().recv();
        }
    });
    let (out_sink, out_events) = events();
    let out = dial(&reactor(), &k0, vec![addr], config(0, 1, &k1), sink(out_sink));
    assert_eq!(next(&out_events), EdgeEvent::Open);
    out.set_ready();
    incoming.set_ready();
    let (step, payload) = step(0, 1, 8);
    out.send(step, payload).unwrap();
    let started = Instant::now();
    let message = failure(&out_events);
    let waited = started.elapsed();
    assert!(message.contains(&format!("edge to rank 1 at {addr}")), "{message}");
    assert!(Duration::from_millis(1500) < waited && waited < Duration::from_secs(4), "{waited:?}");
    drop(thaw);
}

/// A path that can be cut: carries datagrams between whoever dials it and `listener`.
struct Wire {
    addr: SocketAddr,
    is_cut: Arc<AtomicBool>,
}

impl Wire {
    fn to(listener: SocketAddr) -> Self {
        let (near, far) =
            (UdpSocket::bind(loopback()).unwrap(), UdpSocket::bind(loopback()).unwrap());
        far.connect(listener).unwrap();
        let wire = Self { addr: near.local_addr().unwrap(), is_cut: Arc::default() };
        let dialer = Arc::new(OnceLock::new());
        let (near_out, far_out) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let (cut_forth, cut_back) = (Arc::clone(&wire.is_cut), Arc::clone(&wire.is_cut));
        let known = Arc::clone(&dialer);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok((len, from)) = near.recv_from(&mut buffer) {
                known.get_or_init(|| from);
                if !cut_forth.load(Ordering::Relaxed) {
                    let _ = far_out.send(&buffer[..len]);
                }
            }
        });
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok(len) = far.recv(&mut buffer) {
                if let (false, Some(dialer)) = (cut_back.load(Ordering::Relaxed), dialer.get()) {
                    let _ = near_out.send_to(&buffer[..len], dialer);
                }
            }
        });
        wire
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }
}

/// An edge over a wire, with the other ways that `more` makes of the listener's address.
fn wired(more: impl Fn(SocketAddr) -> Vec<SocketAddr>) -> (Pair, Wire, SocketAddr) {
    let (k0, k1) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let listener = EdgeListener::bind(loopback(), &k1).unwrap();
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port()));
    let wire = Wire::to(addr);
    let ((in_sink, in_events), (out_sink, out_events)) = (events(), events());
    let incoming = accept(&reactor(), listener, config(1, 0, &k0), sink(in_sink));
    let ways = [vec![wire.addr], more(addr)].concat();
    let out = dial(&reactor(), &k0, ways, config(0, 1, &k1), sink(out_sink));
    let pair = Pair { out, out_events, incoming, in_events };
    assert_eq!((next(&pair.out_events), next(&pair.in_events)), (EdgeEvent::Open, EdgeEvent::Open));
    pair.out.set_ready();
    pair.incoming.set_ready();
    (pair, wire, addr)
}

/// Sends steps from `first` on, and sees each of them come once, in order.
fn carry(pair: &Pair, numbers: std::ops::Range<u64>) {
    let (out, to_send) = (&pair.out, numbers.clone());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in to_send {
                let (step, payload) = step(number, 1, 3072);
                out.send(step, payload).unwrap();
            }
        });
        for number in numbers {
            let (step, payload) = step(number, 1, 3072);
            assert!(next(&pair.in_events) == EdgeEvent::Step(step, payload), "step {number}");
        }
    });
}

fn moved(events: &Receiver<EdgeEvent>) -> (SocketAddr, String) {
    match next(events) {
        EdgeEvent::Moved { way, cause } => (way.addr, cause),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_edge_goes_on_by_another_way_when_its_path_is_dead() {
    let (pair, wire, addr) = wired(|addr| vec![addr]);
    carry(&pair, 0..20);
    wire.cut();
    // Some of them leave before anybody knows.
    carry(&pair, 20..60);
    let (way, cause) = moved(&pair.out_events);
    assert_eq!(way, addr);
    assert!(cause.contains("heard") || cause.contains("hears"), "{cause}");
    carry(&pair, 60..80);
    pair.out.close(CloseReason::Done);
    assert_eq!(next(&pair.in_events), EdgeEvent::Closed(CloseReason::Done));
}

#[test]
fn an_edge_moves_to_a_better_way_under_load() {
    let (pair, wire, addr) = wired(|_| Vec::new());
    carry(&pair, 0..20);
    let out = &pair.out;
    std::thread::scope(|scope| {
        scope.spawn(|| out.reroute(vec![addr.into()]));
        carry(&pair, 20..400);
    });
    assert_eq!(moved(&pair.out_events), (addr, "a better link".to_owned()));
    // The path that was left is of no use any more.
    wire.cut();
    carry(&pair, 400..420);
    // A way that leads nowhere is no reason to leave this one.
    let silent = UdpSocket::bind(loopback()).unwrap();
    pair.out.reroute(vec![silent.local_addr().unwrap().into()]);
    carry(&pair, 420..440);
    assert!(pair.out_events.recv_timeout(Duration::from_secs(3)).is_err(), "it stays");
    carry(&pair, 440..460);
}

#[test]
fn an_edge_whose_every_way_is_dead_fails_at_both_ends() {
    let silent = UdpSocket::bind(loopback()).unwrap();
    let other = silent.local_addr().unwrap();
    let (pair, wire, _) = wired(|_| vec![other]);
    let addr = wire.addr;
    wire.cut();
    for (events, name) in [
        (&pair.out_events, format!("edge to rank 1 at {addr}")),
        (&pair.in_events, "edge from rank 0".to_owned()),
    ] {
        let message = failure(events);
        assert!(message.contains(&name) && message.contains("nothing was heard"), "{message}");
    }
}

/// A rank that waits for its edges in the reactor, as the product's does.
fn rank(
    me: u32,
    listener: EdgeListener,
    keys: (&KeyPair, &KeyPair),
    peer_addr: SocketAddr,
) -> (OutgoingEdge, IncomingEdge, Inbox<EdgeEvent>) {
    let reactor = reactor();
    let (post, inbox) = reactor.inbox(64);
    let sink = || {
        let post = post.clone();
        move |event| {
            // Nobody reads once the test is over.
            let _ = post.send(event);
        }
    };
    let config = config(me, 1 - me, keys.1);
    let incoming = accept(&reactor, listener, config, sink());
    let out = dial(&reactor, keys.0, vec![peer_addr], config, sink());
    for _ in 0..2 {
        assert_eq!(inbox.recv(), Some(EdgeEvent::Open));
    }
    (out, incoming, inbox)
}

fn two_ranks(
    first: impl FnOnce(OutgoingEdge, &Inbox<EdgeEvent>),
    second: impl FnOnce(OutgoingEdge, &Inbox<EdgeEvent>) + Send,
) {
    let (k0, k1) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let (l0, l1) = (
        EdgeListener::bind(loopback(), &k0).unwrap(),
        EdgeListener::bind(loopback(), &k1).unwrap(),
    );
    let at = |listener: &EdgeListener| (Ipv4Addr::LOCALHOST, listener.port()).into();
    let (a0, a1) = (at(&l0), at(&l1));
    // A step can overtake the other edge's opening.
    let all_open = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (out, _incoming, inbox) = rank(1, l1, (&k1, &k0), a0);
            all_open.wait();
            second(out, &inbox);
        });
        let (out, _incoming, inbox) = rank(0, l0, (&k0, &k1), a1);
        all_open.wait();
        first(out, &inbox);
    });
}

#[test]
fn ranks_that_wait_run_their_own_edges() {
    const STEPS: u64 = 500;
    two_ranks(
        |out, inbox| {
            for number in 0..STEPS {
                let (step, payload) = step(number, 1, 3072);
                out.send(step.clone(), payload.clone()).unwrap();
                assert!(inbox.recv() == Some(EdgeEvent::Step(step, payload)), "step {number}");
            }
        },
        |out, inbox| {
            for _ in 0..STEPS {
                let Some(EdgeEvent::Step(step, payload)) = inbox.recv() else { panic!() };
                out.send(step, payload).unwrap();
            }
        },
    );
}

#[test]
fn edges_go_on_while_their_rank_computes() {
    const STEPS: u64 = 12;
    let (done, is_done) = channel();
    two_ranks(
        move |out, _inbox| {
            // Far more than one write: without somebody who reads acknowledgements it cannot leave.
            for number in 0..STEPS {
                let (step, payload) = step(number, 512, 2048);
                out.send(step, payload).unwrap();
            }
            // As deep in a computation as can be: this thread does nothing for its edges.
            is_done.recv_timeout(PATIENCE).expect("the other rank got all steps");
        },
        move |out, inbox| {
            for _ in 0..STEPS {
                assert!(matches!(inbox.recv(), Some(EdgeEvent::Step(..))));
            }
            done.send(()).unwrap();
            drop(out);
        },
    );
}

#[test]
fn an_inbox_wakes_its_reader_and_ends_with_its_posts() {
    let reactor = reactor();
    let (post, inbox) = reactor.inbox(4);
    std::thread::scope(|scope| {
        // Some while the reader waits, some while it does not; the pauses let the caretaker fall asleep.
        scope.spawn(move || {
            for item in 0..20 {
                post.clone().send(item).unwrap();
                std::thread::park_timeout(Duration::from_millis(item));
            }
        });
        for item in 0..20 {
            assert_eq!(inbox.recv(), Some(item));
        }
        assert_eq!(inbox.recv(), None, "no post is left");
    });
}

#[test]
fn a_taken_port_is_named() {
    let key = KeyPair::generate().unwrap();
    let listener = EdgeListener::bind(loopback(), &key).unwrap();
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port()));
    let error = EdgeListener::bind(addr, &key).unwrap_err();
    assert!(matches!(error, NetError::PortTaken { addr: named } if named == addr), "{error}");
}
