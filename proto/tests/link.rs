//! Two ends of an edge against each other, in one thread, on a fake clock.

mod common;

use std::time::Duration;

use bytes::Bytes;
use daisy_proto::frame::{self, Decoder, Limits};
use daisy_proto::link::{
    EdgeMessage, Link, LinkConfig, LinkError, LinkEvent, LinkFault, MAX_ROWS, Role, StepFault,
};
use daisy_proto::{CloseReason, Dtype, PipelineId, Rank, Row, SeqId, Step};
use proptest::collection::vec;
use proptest::prelude::*;

const PIPELINE: PipelineId = PipelineId(0x5eed);
const OUT: (Rank, Rank) = (Rank(0), Rank(1));
const BACK: (Rank, Rank) = (Rank(1), Rank(0));

/// Both ends, the bytes between them and the clock.
struct Edge {
    now: Duration,
    sender: End,
    receiver: End,
    /// Nothing passes in this direction while set; what is sent is lost.
    cut_forth: bool,
    cut_back: bool,
    /// The receiver's owner takes events only while this is off.
    owner_is_busy: bool,
}

struct End {
    link: Link,
    decoder: Decoder,
    events: Vec<LinkEvent>,
}

impl End {
    fn new(config: LinkConfig, role: Role) -> Self {
        let link = Link::new(config, role, Duration::ZERO);
        Self { link, decoder: Decoder::new(Limits::EDGE), events: Vec::new() }
    }

    fn flush_to(&mut self, other: &mut Self, is_cut: bool, now: Duration) -> bool {
        let mut moved = false;
        while let Some(transmit) = self.link.poll_transmit() {
            moved = true;
            if is_cut {
                continue;
            }
            for chunk in [transmit.header, transmit.payload] {
                other.decoder.push(chunk);
            }
            while let Some(frame) = other.decoder.next().expect("links write good frames") {
                other.link.handle_frame(now, frame);
            }
        }
        moved
    }

    fn drain(&mut self) {
        self.events.extend(std::iter::from_fn(|| self.link.poll_event()));
    }

    fn take(&mut self) -> Vec<LinkEvent> {
        self.drain();
        std::mem::take(&mut self.events)
    }

    /// Numbers of the steps that its owner has taken.
    fn take_steps(&mut self) -> Vec<u64> {
        let number = |event| match event {
            LinkEvent::Step(step, _) => Some(step.number),
            _ => None,
        };
        std::mem::take(&mut self.events).into_iter().filter_map(number).collect()
    }

    fn handle(&mut self, now: Duration, message: &EdgeMessage, payload: &[u8]) {
        let mut bytes = frame::encode(message, payload.len()).expect("fits").to_vec();
        bytes.extend_from_slice(payload);
        self.link.handle_frame(now, common::one_frame(Limits::EDGE, bytes));
    }
}

impl Edge {
    fn new((from, to): (Rank, Rank), sender_credit: u32, receiver_credit: u32) -> Self {
        let config = LinkConfig::new(PIPELINE, from, to);
        Self {
            now: Duration::ZERO,
            sender: End::new(LinkConfig { credit: sender_credit, ..config }, Role::Sender),
            receiver: End::new(LinkConfig { credit: receiver_credit, ..config }, Role::Receiver),
            cut_forth: false,
            cut_back: false,
            owner_is_busy: false,
        }
    }

    fn open() -> Self {
        let mut edge = Self::new(OUT, 4, 4);
        edge.settle();
        assert_eq!(edge.sender.take(), [LinkEvent::Open]);
        assert_eq!(edge.receiver.take(), [LinkEvent::Open]);
        edge
    }

    fn ready() -> Self {
        let mut edge = Self::open();
        edge.sender.link.set_ready(edge.now);
        edge.receiver.link.set_ready(edge.now);
        edge
    }

    /// Carries frames until neither side has one.
    fn settle(&mut self) {
        loop {
            let forth = self.sender.flush_to(&mut self.receiver, self.cut_forth, self.now);
            let back = self.receiver.flush_to(&mut self.sender, self.cut_back, self.now);
            self.sender.drain();
            if !self.owner_is_busy {
                self.receiver.drain();
            }
            if !forth && !back {
                return;
            }
        }
    }

    /// Lets time pass, from one timeout to the next.
    fn run_until(&mut self, end_ms: u64) {
        let end = Duration::from_millis(end_ms);
        loop {
            self.settle();
            let timeouts = [self.sender.link.poll_timeout(), self.receiver.link.poll_timeout()];
            let next = timeouts.into_iter().flatten().min().filter(|&next| next <= end);
            let Some(next) = next else { break };
            assert!(next > self.now || self.now == Duration::ZERO, "time stands still at {next:?}");
            self.now = next;
            for side in [&mut self.sender, &mut self.receiver] {
                if side.link.poll_timeout().is_some_and(|at| at <= next) {
                    side.link.handle_timeout(next);
                }
            }
        }
        self.now = end;
    }

    /// Both ends go on by another stream; what was under way on the old one is gone.
    fn rejoin(&mut self) {
        (self.cut_forth, self.cut_back) = (false, false);
        for side in [&mut self.sender, &mut self.receiver] {
            side.decoder = Decoder::new(Limits::EDGE);
            side.link.rejoin(self.now);
        }
        self.settle();
    }

    fn send(&mut self, number: u64) -> Result<(), LinkError> {
        let (step, payload) = common::step(PIPELINE, number, 3);
        self.sender.link.send_step(self.now, step, payload)
    }
}

fn is_step(event: &LinkEvent, number: u64) -> bool {
    matches!(event, LinkEvent::Step(step, _) if step.number == number)
}

#[test]
fn an_edge_opens_when_both_have_said_hello() {
    let mut edge = Edge::new(OUT, 4, 4);
    assert_eq!(edge.receiver.link.poll_transmit(), None, "the sender speaks first");
    assert_eq!(edge.send(0), Err(LinkError::NotOpen));

    let hello = edge.sender.link.poll_transmit().expect("a hello");
    edge.receiver.link.handle_frame(edge.now, common::one_frame(Limits::EDGE, hello.header));
    assert_eq!(edge.receiver.take(), [LinkEvent::Open]);
    assert!(!edge.sender.link.is_open(), "not before the answer");

    edge.settle();
    assert_eq!(edge.sender.take(), [LinkEvent::Open]);
    assert_eq!(edge.send(0), Ok(()));
}

#[test]
fn steps_arrive_in_order_with_their_payload() {
    let mut edge = Edge::open();
    for number in 0..50 {
        let (step, payload) = common::step(PIPELINE, number, 3);
        edge.sender.link.send_step(edge.now, step.clone(), payload.clone()).expect("credit");
        edge.settle();
        assert_eq!(edge.receiver.take(), [LinkEvent::Step(step, payload)]);
    }
    let (sent, taken) = (edge.sender.link.stats(), edge.receiver.link.stats());
    assert_eq!((sent.steps, taken.steps), (50, 50));
    assert_eq!((sent.payload_bytes, taken.payload_bytes), (50 * 24, 50 * 24));
    assert_eq!(sent.steps_acknowledged, 50);
    assert_eq!(taken.heartbeats_sent, 25, "half a credit of 4: one frame back for two steps");
}

#[test]
fn credit_bounds_what_is_on_the_way() {
    let mut edge = Edge::open();
    edge.owner_is_busy = true;
    for number in 0..4 {
        assert_eq!(edge.sender.link.credit_left(), 4 - u32::try_from(number).unwrap());
        edge.send(number).expect("credit");
        edge.settle();
    }
    assert_eq!(edge.send(4), Err(LinkError::NoCredit));
    edge.settle();
    assert_eq!(edge.sender.take(), [], "no credit comes back while the owner is busy");

    assert!(is_step(&edge.receiver.link.poll_event().expect("a step"), 0));
    assert!(is_step(&edge.receiver.link.poll_event().expect("a step"), 1));
    edge.settle();
    assert_eq!(edge.sender.take(), [LinkEvent::Writable]);
    assert_eq!(edge.sender.link.credit_left(), 2);
    assert_eq!(edge.send(4), Ok(()));
}

#[test]
fn the_smaller_credit_holds_on_both_sides() {
    for (sender, receiver) in [(2, 16), (16, 2), (1, 1), (0, 9)] {
        let mut edge = Edge::new(OUT, sender, receiver);
        edge.owner_is_busy = true;
        edge.settle();
        let least = sender.min(receiver).max(1);
        assert_eq!(edge.sender.link.credit_left(), least);
        edge.owner_is_busy = false;
        for number in 0..100 {
            edge.send(number).expect("each step's credit comes back at once");
            edge.settle();
            assert_ne!(
                edge.sender.link.credit_left(),
                0,
                "step {number} of {sender}/{receiver} waits for a timer"
            );
        }
    }
}

#[test]
fn a_step_that_waits_in_the_receiver_is_acknowledged_by_the_next_heartbeat() {
    let mut edge = Edge::open();
    edge.send(0).expect("credit");
    edge.run_until(400);
    assert_eq!(edge.sender.link.stats().steps_acknowledged, 0, "one of four is not half");
    edge.run_until(600);
    assert_eq!(edge.sender.link.stats().steps_acknowledged, 1);
}

#[test]
fn heartbeats_keep_an_idle_edge_alive() {
    let mut edge = Edge::ready();
    edge.run_until(60_000);
    assert_eq!(edge.sender.take(), []);
    assert_eq!(edge.receiver.take(), []);
    assert_eq!(edge.sender.link.stats().heartbeats_sent, 120);
    assert_eq!(edge.receiver.link.stats().heartbeats_received, 120);
}

#[test]
fn steps_stand_in_for_the_senders_heartbeats() {
    let mut edge = Edge::ready();
    for number in 0..20 {
        edge.run_until(400 * (number + 1));
        edge.send(number).expect("credit");
    }
    edge.settle();
    assert_eq!(edge.sender.link.stats().heartbeats_sent, 0);
    assert_eq!(edge.receiver.take().len(), 20);
}

#[test]
fn silence_is_loss_after_the_timeout_that_holds() {
    let cases = [("loading", false, 10_000), ("ready", true, 2_000)];
    for (name, is_ready, timeout_ms) in cases {
        let mut edge = if is_ready { Edge::ready() } else { Edge::open() };
        edge.run_until(3_000);
        edge.cut_forth = true;
        edge.cut_back = true;
        edge.run_until(3_000 + timeout_ms - 1);
        assert_eq!(edge.sender.take(), [], "{name}: too early");
        edge.run_until(3_000 + timeout_ms);
        let lost = [LinkEvent::Lost { silent_ms: timeout_ms }];
        assert_eq!(edge.sender.take(), lost, "{name}");
        assert_eq!(edge.receiver.take(), lost, "{name}");
        assert_eq!(edge.sender.link.poll_timeout(), None);
        assert_eq!(edge.send(0), Err(LinkError::NotOpen));
    }
}

#[test]
fn a_one_way_cut_is_told_to_the_side_that_still_hears() {
    let mut edge = Edge::ready();
    edge.cut_back = true;
    edge.run_until(2_000);
    assert_eq!(edge.sender.take(), [LinkEvent::Lost { silent_ms: 2_000 }]);
    assert_eq!(edge.receiver.take(), [LinkEvent::Closed(CloseReason::Silent)]);
}

#[test]
fn a_hello_without_answer_is_loss() {
    let mut edge = Edge::new(OUT, 4, 4);
    edge.cut_forth = true;
    edge.run_until(9_999);
    assert_eq!((edge.sender.take(), edge.receiver.take()), (vec![], vec![]));
    edge.run_until(10_000);
    assert_eq!(edge.sender.take(), [LinkEvent::Lost { silent_ms: 10_000 }]);
    assert_eq!(edge.receiver.take(), [LinkEvent::Lost { silent_ms: 10_000 }]);
}

#[test]
fn a_neighbour_that_was_silent_while_loading_gets_the_short_timeout_from_ready_on() {
    let mut edge = Edge::open();
    edge.cut_back = true;
    edge.run_until(8_000);
    edge.sender.link.set_ready(edge.now);
    edge.run_until(9_999);
    assert_eq!(edge.sender.take(), []);
    edge.run_until(10_000);
    assert_eq!(edge.sender.take(), [LinkEvent::Lost { silent_ms: 10_000 }]);
}

#[test]
fn a_hello_that_does_not_fit_closes_both_sides() {
    let fits = LinkConfig::new(PIPELINE, Rank(1), Rank(2));
    let cases = [
        (LinkConfig { pipeline: PipelineId(1), ..fits }, CloseReason::WrongPipeline),
        (LinkConfig { from: Rank(0), ..fits }, CloseReason::WrongRank),
        (LinkConfig { to: Rank(3), ..fits }, CloseReason::WrongRank),
    ];
    for (config, reason) in cases {
        let mut edge = Edge::new((Rank(1), Rank(2)), 4, 4);
        edge.receiver = End::new(config, Role::Receiver);
        edge.settle();
        assert_eq!(edge.receiver.take(), [LinkEvent::Closed(reason)]);
        assert_eq!(edge.sender.take(), [LinkEvent::Closed(reason)], "the goodbye tells it");
        assert!(edge.receiver.link.fault().is_some() && edge.sender.link.fault().is_none());
    }
}

#[test]
fn another_version_is_refused() {
    let mut edge = Edge::new(OUT, 4, 4);
    let hello = EdgeMessage::Hello {
        protocol_version: 99,
        pipeline: PIPELINE,
        from: OUT.0,
        to: OUT.1,
        credit: 4,
        steps: 0,
    };
    edge.receiver.handle(edge.now, &hello, &[]);
    assert_eq!(edge.receiver.take(), [LinkEvent::Closed(CloseReason::ProtocolVersion)]);
    assert_eq!(edge.receiver.link.fault(), Some(&LinkFault::Version { got: 99 }));
}

#[test]
fn a_step_of_another_pipeline_is_dropped_and_counted() {
    let mut edge = Edge::open();
    let (stale, payload) = common::step(PipelineId(1), 7, 3);
    edge.receiver.handle(edge.now, &EdgeMessage::Step(stale.clone()), &payload);
    assert_eq!(edge.receiver.take(), []);
    assert_eq!(edge.receiver.link.stats().stale_steps, 1);
    edge.send(0).expect("credit");
    edge.settle();
    assert!(is_step(&edge.receiver.take()[0], 0), "the edge goes on");

    let expected = LinkError::WrongPipeline { got: PipelineId(1), expected: PIPELINE };
    assert_eq!(edge.sender.link.send_step(edge.now, stale, payload), Err(expected));
}

#[test]
fn a_goodbye_ends_the_edge_after_the_steps_before_it() {
    let mut edge = Edge::open();
    edge.owner_is_busy = true;
    edge.send(0).expect("credit");
    edge.settle();
    edge.sender.link.close(CloseReason::Done);
    edge.settle();
    let events = edge.receiver.take();
    assert!(is_step(&events[0], 0));
    assert_eq!(events[1..], [LinkEvent::Closed(CloseReason::Done)]);
    assert_eq!(edge.sender.take(), [], "who closes knows it");

    edge.receiver.handle(edge.now, &EdgeMessage::Heartbeat { steps: 9 }, &[]);
    assert_eq!(edge.receiver.link.stats().late_frames, 1);
    assert_eq!(edge.receiver.take(), []);
    assert_eq!(edge.receiver.link.poll_transmit(), None);
}

#[test]
fn closing_drops_what_has_not_left() {
    let mut edge = Edge::open();
    edge.send(0).expect("credit");
    edge.sender.link.close(CloseReason::NeighbourLost);
    edge.sender.link.close(CloseReason::Done);
    edge.settle();
    assert_eq!(edge.receiver.take(), [LinkEvent::Closed(CloseReason::NeighbourLost)]);
}

#[test]
fn a_link_goes_on_by_another_stream() {
    let mut edge = Edge::ready();
    edge.owner_is_busy = true;
    edge.send(0).expect("credit");
    edge.settle();
    // It arrives, and its acknowledgement does not; the others do not arrive.
    edge.cut_forth = true;
    edge.send(1).expect("credit");
    edge.settle();
    edge.cut_back = true;
    edge.send(2).expect("credit");
    edge.run_until(4000);
    assert!(matches!(edge.sender.take()[..], [LinkEvent::Lost { .. }]), "it heard nothing");
    edge.owner_is_busy = false;
    let before = edge.receiver.take();
    assert!(is_step(&before[0], 0) && matches!(before[1..], [LinkEvent::Lost { .. }]));

    edge.rejoin();
    assert_eq!(edge.sender.take(), [LinkEvent::Rejoined]);
    let after = edge.receiver.take();
    assert_eq!(after[0], LinkEvent::Rejoined);
    assert!(is_step(&after[1], 1) && is_step(&after[2], 2) && after.len() == 3, "{after:?}");
    // The credit is that of before, and silence counts as before.
    edge.run_until(4500);
    for number in 3..7 {
        edge.send(number).expect("credit");
    }
    assert_eq!(edge.send(7), Err(LinkError::NoCredit));
    edge.settle();
    assert_eq!(edge.receiver.take().len(), 4);
    edge.run_until(60_000);
    assert!(edge.sender.link.is_open() && edge.receiver.link.is_open());
}

#[test]
fn a_hello_with_impossible_counts_ends_the_link() {
    let hello = |steps| EdgeMessage::Hello {
        protocol_version: daisy_proto::PROTOCOL_VERSION,
        pipeline: PIPELINE,
        from: OUT.0,
        to: OUT.1,
        credit: 4,
        steps,
    };
    for (role, taken, steps, least, most) in [
        // The other side has fewer than it acknowledged, or more than were sent.
        (Role::Sender, 2, 1, 2, 3),
        (Role::Sender, 2, 4, 2, 3),
        // It has sent fewer than came, or more than it may.
        (Role::Receiver, 2, 1, 2, 6),
        (Role::Receiver, 2, 7, 2, 6),
    ] {
        let mut edge = Edge::ready();
        for number in 0..taken {
            edge.send(number).expect("credit");
        }
        edge.settle();
        edge.run_until(1000);
        if role == Role::Sender {
            edge.cut_forth = true;
            edge.send(taken).expect("credit");
            edge.settle();
        }
        let side = if role == Role::Sender { &mut edge.sender } else { &mut edge.receiver };
        side.link.rejoin(edge.now);
        side.handle(edge.now, &hello(steps), &[]);
        assert_eq!(side.link.fault(), Some(&LinkFault::Count { got: steps, least, most }));
        assert!(side.link.is_closed());
    }
}

proptest! {
    /// Whatever is cut, and whenever the link moves: every step comes once, in order.
    #[test]
    fn no_step_is_lost_or_doubled(acts in vec(0_u8..6, 1..80)) {
        let mut edge = Edge::ready();
        let (mut sent, mut came) = (0, Vec::new());
        for act in acts {
            match act {
                0 | 1 => sent += u64::from(edge.send(sent).is_ok()),
                2 => edge.cut_forth = true,
                3 => edge.cut_back = true,
                4 => edge.owner_is_busy = !edge.owner_is_busy,
                // A stream is reliable: once something was lost there is only another one.
                _ => edge.rejoin(),
            }
            edge.settle();
            came.extend(edge.receiver.take_steps());
        }
        edge.owner_is_busy = false;
        edge.rejoin();
        came.extend(edge.receiver.take_steps());
        prop_assert_eq!(edge.sender.link.fault(), None);
        prop_assert_eq!(edge.receiver.link.fault(), None);
        prop_assert_eq!(came, (0..sent).collect::<Vec<_>>());
    }
}

type IsFault = fn(&StepFault) -> bool;

/// What a receiver, at step 1, must not accept; and that a sender refuses to send the same steps.
#[test]
fn a_step_that_breaks_the_rules_is_a_bad_frame() {
    let (good, payload) = common::step(PIPELINE, 1, 3);
    let row = good.rows[0];
    let rows = |rows: Vec<Row>, tokens| Step { rows, tokens, ..good.clone() };
    let cases: [(&str, Step, usize, IsFault); 10] = [
        ("repeat", Step { number: 0, ..good.clone() }, 24, |f| {
            *f == StepFault::Number { got: 0, expected: 1 }
        }),
        ("gap", Step { number: 2, ..good.clone() }, 24, |f| {
            *f == StepFault::Number { got: 2, expected: 1 }
        }),
        ("short payload", good.clone(), 23, |f| matches!(f, StepFault::Payload(_))),
        ("long payload", good.clone(), 25, |f| matches!(f, StepFault::Payload(_))),
        ("no payload", good.clone(), 0, |f| matches!(f, StepFault::Payload(_))),
        ("wider elements", Step { dtype: Dtype::F32, ..good.clone() }, 24, |f| {
            matches!(f, StepFault::Payload(_))
        }),
        ("fewer rows than positions", rows(vec![row], 2), 16, |f| {
            *f == StepFault::Tokens { got: 2, expected: 3 }
        }),
        ("an empty row", rows(vec![Row { count: 0, ..row }], 0), 0, |f| {
            matches!(f, StepFault::Row { index: 0, count: 0, .. })
        }),
        ("a row beyond 2^32", rows(vec![Row { first: u32::MAX - 1, ..row }], 3), 24, |f| {
            matches!(f, StepFault::Row { index: 0, .. })
        }),
        ("too many rows", rows(vec![Row { count: 1, ..row }; MAX_ROWS + 1], 2049), 2049 * 8, |f| {
            matches!(f, StepFault::TooManyRows { rows: 2049, releases: 0 })
        }),
    ];
    for (name, step, payload_len, is_expected) in cases {
        let mut edge = Edge::open();
        edge.send(0).expect("credit");
        edge.settle();
        edge.receiver.take();

        let refused =
            edge.sender.link.send_step(edge.now, step.clone(), Bytes::from(vec![0; payload_len]));
        assert!(
            matches!(&refused, Err(LinkError::Step(f)) if is_expected(f)),
            "{name}: {refused:?}"
        );

        edge.receiver.handle(edge.now, &EdgeMessage::Step(step), &vec![0; payload_len]);
        assert_eq!(edge.receiver.take(), [LinkEvent::Closed(CloseReason::BadFrame)], "{name}");
        let fault = edge.receiver.link.fault();
        assert!(matches!(fault, Some(LinkFault::Step(f)) if is_expected(f)), "{name}: {fault:?}");
        edge.settle();
        assert_eq!(edge.sender.take(), [LinkEvent::Closed(CloseReason::BadFrame)], "{name}");
    }
    let mut edge = Edge::open();
    edge.send(0).expect("credit");
    assert_eq!(edge.sender.link.send_step(edge.now, good, payload), Ok(()), "the base is good");
}

#[test]
fn the_edge_back_to_rank_0_carries_the_wanted_rows_alone() {
    let mut edge = Edge::new(BACK, 4, 4);
    edge.settle();
    edge.receiver.take();
    let row = |seq, logits| Row { seq: SeqId(seq), first: 5, count: 7, logits };
    let step = Step {
        pipeline: PIPELINE,
        number: 0,
        rows: vec![row(1, true), row(2, false), row(3, true)],
        release: vec![],
        dtype: Dtype::F32,
        tokens: 2,
        width: 8,
    };
    let nothing = Step { number: 1, rows: vec![row(4, false)], tokens: 0, ..step.clone() };
    let payload = Bytes::from(vec![0; 64]);
    edge.sender.link.send_step(edge.now, step.clone(), payload.clone()).expect("two wanted rows");
    edge.sender.link.send_step(edge.now, nothing.clone(), Bytes::new()).expect("an empty answer");
    edge.settle();
    assert_eq!(
        edge.receiver.take(),
        [LinkEvent::Step(step, payload), LinkEvent::Step(nothing, Bytes::new())]
    );
}

#[test]
fn the_largest_step_fits_a_header() {
    let row = Row { seq: SeqId(u64::MAX), first: u32::MAX - 1, count: 1, logits: true };
    let step = Step {
        pipeline: PipelineId(u64::MAX),
        number: u64::MAX,
        rows: vec![Row { count: u32::MAX, ..row }; MAX_ROWS],
        release: vec![SeqId(u64::MAX); MAX_ROWS],
        dtype: Dtype::F32,
        tokens: u32::MAX,
        width: u32::MAX,
    };
    frame::encode_within(Limits::EDGE, &EdgeMessage::Step(step), 0).expect("it fits");
}

/// Frames that have no place in an open edge, by the side that gets them.
#[test]
fn a_frame_out_of_place_ends_the_edge() {
    let hello = EdgeMessage::Hello {
        protocol_version: daisy_proto::PROTOCOL_VERSION,
        pipeline: PIPELINE,
        from: OUT.0,
        to: OUT.1,
        credit: 4,
        steps: 0,
    };
    let (step, payload) = common::step(PIPELINE, 0, 3);
    let step = EdgeMessage::Step(step);
    let heartbeat = |steps| EdgeMessage::Heartbeat { steps };
    let cases: [(&str, Role, &EdgeMessage, &[u8], LinkFault); 6] = [
        ("a second hello", Role::Sender, &hello, &[], LinkFault::Unexpected("hello")),
        ("a step against the edge", Role::Sender, &step, &payload, LinkFault::Payload("step")),
        (
            "an acknowledged step that was never sent",
            Role::Sender,
            &heartbeat(1),
            &[],
            LinkFault::Count { got: 1, least: 0, most: 0 },
        ),
        (
            "a lost step",
            Role::Receiver,
            &heartbeat(1),
            &[],
            LinkFault::Count { got: 1, least: 0, most: 0 },
        ),
        (
            "bytes after a heartbeat",
            Role::Receiver,
            &heartbeat(0),
            b"x",
            LinkFault::Payload("heartbeat"),
        ),
        ("a second hello", Role::Receiver, &hello, &[], LinkFault::Unexpected("hello")),
    ];
    for (name, role, message, payload, fault) in cases {
        let mut edge = Edge::open();
        let now = edge.now;
        let end = if role == Role::Sender { &mut edge.sender } else { &mut edge.receiver };
        end.handle(now, message, payload);
        assert_eq!(end.take(), [LinkEvent::Closed(CloseReason::BadFrame)], "{name}");
        assert_eq!(end.link.fault(), Some(&fault), "{name}");
    }
}

#[test]
fn nothing_but_a_hello_or_a_goodbye_comes_first() {
    let (step, payload) = common::step(PIPELINE, 0, 3);
    for (message, payload) in
        [(EdgeMessage::Step(step), payload), (EdgeMessage::Heartbeat { steps: 0 }, Bytes::new())]
    {
        let mut edge = Edge::new(OUT, 4, 4);
        edge.receiver.handle(edge.now, &message, &payload);
        assert_eq!(edge.receiver.take(), [LinkEvent::Closed(CloseReason::BadFrame)]);
    }
    let mut edge = Edge::new(OUT, 4, 4);
    let goodbye = EdgeMessage::Goodbye { reason: CloseReason::from_code(4711) };
    edge.receiver.handle(edge.now, &goodbye, &[]);
    assert_eq!(edge.receiver.take(), [LinkEvent::Closed(CloseReason::Unknown(4711))]);
}

#[test]
fn a_sender_that_ignores_the_credit_is_cut_off() {
    let mut edge = Edge::open();
    for number in 0..5 {
        let (step, payload) = common::step(PIPELINE, number, 3);
        edge.receiver.handle(edge.now, &EdgeMessage::Step(step), &payload);
    }
    assert_eq!(edge.receiver.link.fault(), Some(&LinkFault::Overrun { credit: 4 }));
    assert_eq!(edge.receiver.take().len(), 4 + 1, "four steps and the end");
}

#[test]
fn a_blocked_transport_piles_up_no_heartbeats() {
    let mut edge = Edge::open();
    for beat in 1..=15 {
        edge.sender.link.handle_timeout(Duration::from_millis(500 * beat));
    }
    assert!(edge.sender.link.poll_transmit().is_some());
    assert_eq!(edge.sender.link.poll_transmit(), None);
}

#[test]
fn a_receiving_side_sends_no_steps() {
    let mut edge = Edge::open();
    let (step, payload) = common::step(PIPELINE, 0, 3);
    let refused = edge.receiver.link.send_step(edge.now, step, payload);
    assert_eq!(refused, Err(LinkError::NotSender));
    assert_eq!(edge.receiver.link.credit_left(), 0);
}
