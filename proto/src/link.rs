//! The state machine of one edge, rank k → rank k+1 (and last rank → rank 0): data one way,
//! heartbeats both ways, on one reliable ordered stream.
//!
//! A link does no IO and reads no clock: `now` is an argument, the time since any fixed origin. It
//! does not know QUIC, keys or tensors. Its owner feeds it ([`Link::handle_frame`],
//! [`Link::handle_timeout`]), commands it ([`Link::send_step`], [`Link::set_ready`],
//! [`Link::close`]) and after each of these drains [`Link::poll_transmit`] and [`Link::poll_event`]
//! and asks [`Link::poll_timeout`] for the next wake-up. Frames that have come are handled before
//! the timeout, or a busy owner would take its own delay for silence.
//!
//! The sender dials and says hello; the receiver checks it and answers; each side is open when it
//! has seen a hello that fits. Steps are numbered from 0 without a gap. At most `credit` steps are
//! on the way: the receiver's heartbeats say how many its owner has taken, and they come at once
//! when half of the credit is due.
//!
//! A link outlives its stream. On another one ([`Link::rejoin`]) both say hello again with their counts,
//! and the sender sends anew what did not come through: no step is lost and none comes twice.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use self::fault::{Carries, check_step};
pub use self::fault::{LinkError, LinkFault, StepFault};
use crate::frame::{self, Frame, Limits};
use crate::{CloseReason, PROTOCOL_VERSION, PipelineId, Rank, Step};

mod fault;

/// Header of each frame on an edge. Only a step has a payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EdgeMessage {
    /// First message of both sides. `from` and `to` are the edge's ends in data direction.
    Hello {
        protocol_version: u32,
        pipeline: PipelineId,
        from: Rank,
        to: Rank,
        /// Steps that may be on the way at once; the smaller of both sides' counts.
        credit: u32,
        /// Steps that the sender has sent, or that have come to the receiver, on earlier streams.
        steps: u64,
    },
    Step(Step),
    /// Steps sent so far (from the sender) or taken by the receiver's owner so far (from the
    /// receiver): a heartbeat that counts, since a process can live while its work stands still.
    Heartbeat {
        steps: u64,
    },
    /// Nothing follows.
    Goodbye {
        reason: CloseReason,
    },
}

/// What an edge is and how it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkConfig {
    pub pipeline: PipelineId,
    /// The rank that sends steps.
    pub from: Rank,
    /// The rank that receives them.
    pub to: Rank,
    /// Steps on the way at once: bounds the memory of both sides.
    pub credit: u32,
    pub heartbeat_interval: Duration,
    /// Silence that counts as loss until [`Link::set_ready`]: loading starves timers.
    pub loading_timeout: Duration,
    /// Silence that counts as loss afterwards.
    pub idle_timeout: Duration,
}

impl LinkConfig {
    #[must_use]
    pub const fn new(pipeline: PipelineId, from: Rank, to: Rank) -> Self {
        Self {
            pipeline,
            from,
            to,
            credit: DEFAULT_CREDIT,
            heartbeat_interval: Duration::from_millis(500),
            loading_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(2),
        }
    }
}

/// This side's part in the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Dials, and sends steps.
    Sender,
    /// Listens, and receives them.
    Receiver,
}

/// One frame to write: `header` is prefix and header in one, then `payload` as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    pub header: Bytes,
    pub payload: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// Both hellos fit. Steps can be sent.
    Open,
    /// They fit on another stream, where the link goes on.
    Rejoined,
    Step(Step, Bytes),
    /// There is credit again after [`LinkError::NoCredit`].
    Writable,
    /// The other side said goodbye, or it broke the protocol ([`Link::fault`] says how). Not sent
    /// for this side's own [`Link::close`].
    Closed(CloseReason),
    /// Nothing was heard for too long.
    Lost {
        silent_ms: u64,
    },
}

/// Counts since the link was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Sender: steps given to the transport. Receiver: steps that its owner took.
    pub steps: u64,
    /// Sender: steps that the other side's owner took.
    pub steps_acknowledged: u64,
    pub payload_bytes: u64,
    pub heartbeats_sent: u64,
    pub heartbeats_received: u64,
    /// Steps of another pipeline, dropped.
    pub stale_steps: u64,
    /// Frames that came after the end, dropped.
    pub late_frames: u64,
    /// When something was last heard.
    pub heard_at: Duration,
    /// When a step last came (receiver) or was last acknowledged (sender).
    pub progress_at: Duration,
}

#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    role: Role,
    state: State,
    events: VecDeque<LinkEvent>,
    /// A hello or a goodbye, before all else.
    greeting: Option<Transmit>,
    /// At most `credit` steps.
    steps: VecDeque<Transmit>,
    /// Sender: steps that left and were not acknowledged, for another stream. Together with `steps` at
    /// most `credit`.
    kept: VecDeque<Transmit>,
    /// A heartbeat is made when it leaves: there is never more than one, and its count is true.
    heartbeat_due: bool,
    heartbeat_at: Duration,
    /// Silence is counted from here.
    listening_from: Duration,
    is_ready: bool,
    /// When both sides had last said hello.
    opened_at: Option<Duration>,
    /// Number of the next step to send or to receive.
    next_number: u64,
    /// Receiver: `stats.steps` of the last heartbeat that left.
    told: u64,
    wants_credit: bool,
    fault: Option<LinkFault>,
    stats: LinkStats,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No hello has come yet.
    Connecting,
    Open,
    Closed,
}

impl Link {
    #[must_use]
    pub fn new(config: LinkConfig, role: Role, now: Duration) -> Self {
        let config = LinkConfig { credit: config.credit.clamp(1, MAX_CREDIT), ..config };
        let mut link = Self {
            config,
            role,
            state: State::Connecting,
            events: VecDeque::new(),
            greeting: None,
            steps: VecDeque::new(),
            kept: VecDeque::new(),
            heartbeat_due: false,
            heartbeat_at: now,
            listening_from: now,
            is_ready: false,
            opened_at: None,
            next_number: 0,
            told: 0,
            wants_credit: false,
            fault: None,
            stats: LinkStats { heard_at: now, progress_at: now, ..LinkStats::default() },
        };
        if role == Role::Sender {
            link.greeting = Some(link.hello());
        }
        link
    }

    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Whether both sides have said hello, on this stream or an earlier one.
    #[must_use]
    pub const fn has_opened(&self) -> bool {
        self.opened_at.is_some()
    }

    /// Steps that can be sent now.
    #[must_use]
    pub fn credit_left(&self) -> u32 {
        if self.role == Role::Receiver || !self.is_open() {
            return 0;
        }
        let on_the_way = self.next_number - self.stats.steps_acknowledged;
        u32::try_from(u64::from(self.config.credit).saturating_sub(on_the_way)).unwrap_or(0)
    }

    /// How the other side broke the protocol, if that ended the link.
    #[must_use]
    pub const fn fault(&self) -> Option<&LinkFault> {
        self.fault.as_ref()
    }

    #[must_use]
    pub const fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Queues a step. Ask [`Link::credit_left`] first: without credit the step is refused, and
    /// [`LinkEvent::Writable`] tells when to try again.
    pub fn send_step(
        &mut self,
        now: Duration,
        step: Step,
        payload: Bytes,
    ) -> Result<(), LinkError> {
        if self.role == Role::Receiver {
            return Err(LinkError::NotSender);
        }
        if !self.is_open() {
            return Err(LinkError::NotOpen);
        }
        if step.pipeline != self.config.pipeline {
            let expected = self.config.pipeline;
            return Err(LinkError::WrongPipeline { got: step.pipeline, expected });
        }
        check_step(&step, &payload, self.next_number, self.carries())?;
        if self.credit_left() == 0 {
            self.wants_credit = true;
            return Err(LinkError::NoCredit);
        }
        let header = frame::encode_within(Limits::EDGE, &EdgeMessage::Step(step), payload.len())?;
        self.steps.push_back(Transmit { header, payload });
        self.next_number += 1;
        // A step proves life as well as a heartbeat does.
        self.heartbeat_due = false;
        self.heartbeat_at = now + self.config.heartbeat_interval;
        Ok(())
    }

    /// The whole pipeline is loaded: from now on the short timeout holds.
    pub fn set_ready(&mut self, now: Duration) {
        self.is_ready = true;
        // The other side may have been silent within the long timeout until now.
        self.listening_from = self.listening_from.max(now);
    }

    /// Ends the link. What has not left yet is dropped; a goodbye with the reason leaves.
    pub fn close(&mut self, reason: CloseReason) {
        self.steps.clear();
        self.kept.clear();
        self.say_goodbye(reason);
    }

    /// The frames take another stream from now on, on which nothing was said yet. A link that was lost
    /// lives again; not one that was closed or whose other side broke the protocol.
    pub fn rejoin(&mut self, now: Duration) {
        self.state = State::Connecting;
        self.greeting = (self.role == Role::Sender).then(|| self.hello());
        self.heartbeat_due = false;
        self.listening_from = self.listening_from.max(now);
    }

    pub fn handle_frame(&mut self, now: Duration, frame: Frame) {
        if self.is_closed() {
            self.stats.late_frames += 1;
            return;
        }
        self.stats.heard_at = now;
        self.listening_from = self.listening_from.max(now);
        if let Err(fault) = self.accept(now, frame) {
            self.close(fault.reason());
            self.events.push_back(LinkEvent::Closed(fault.reason()));
            self.fault = Some(fault);
        }
    }

    /// Call at [`Link::poll_timeout`], after the frames that have come were handled.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.is_closed() {
            return;
        }
        if now >= self.silence_ends_at() {
            let silent = now.saturating_sub(self.stats.heard_at);
            let silent_ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
            self.say_goodbye(CloseReason::Silent);
            self.events.push_back(LinkEvent::Lost { silent_ms });
        } else if self.is_open() && now >= self.heartbeat_at {
            self.heartbeat_due = true;
            self.heartbeat_at = now + self.config.heartbeat_interval;
        }
    }

    /// The next frame to write.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        if let Some(greeting) = self.greeting.take() {
            return Some(greeting);
        }
        if self.is_open()
            && let Some(step) = self.steps.pop_front()
        {
            self.stats.steps += 1;
            self.stats.payload_bytes += step.payload.len() as u64;
            self.kept.push_back(step.clone());
            return Some(step);
        }
        if !self.heartbeat_due || !self.is_open() {
            return None;
        }
        self.heartbeat_due = false;
        self.told = self.stats.steps;
        self.stats.heartbeats_sent += 1;
        Some(bare(&EdgeMessage::Heartbeat { steps: self.stats.steps }))
    }

    /// What happened, in order. A step counts as taken, and gives its credit back, when it leaves
    /// here: an owner that cannot keep up stops polling.
    pub fn poll_event(&mut self) -> Option<LinkEvent> {
        let event = self.events.pop_front()?;
        if let LinkEvent::Step(_, payload) = &event {
            self.stats.steps += 1;
            self.stats.payload_bytes += payload.len() as u64;
            // Half the credit: the sender never waits for the next heartbeat, and single steps cost
            // no frame back.
            let untold = self.stats.steps - self.told;
            self.heartbeat_due |= untold * 2 >= u64::from(self.config.credit);
        }
        Some(event)
    }

    /// When to call [`Link::handle_timeout`] next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        match self.state {
            State::Connecting => Some(self.silence_ends_at()),
            State::Open => Some(self.silence_ends_at().min(self.heartbeat_at)),
            State::Closed => None,
        }
    }

    fn accept(&mut self, now: Duration, frame: Frame) -> Result<(), LinkFault> {
        let message: EdgeMessage = frame::decode(&frame.header)?;
        let name = message.name();
        match (message, self.state, self.role) {
            (EdgeMessage::Step(step), State::Open, Role::Receiver) => {
                return self.accept_step(now, step, frame.payload);
            }
            _ if !frame.payload.is_empty() => return Err(LinkFault::Payload(name)),
            (hello @ EdgeMessage::Hello { .. }, State::Connecting, _) => {
                self.accept_hello(now, &hello)?;
            }
            (EdgeMessage::Heartbeat { steps }, State::Open, Role::Receiver) => {
                self.stats.heartbeats_received += 1;
                let sent = self.next_number;
                check_count(steps, sent, sent)?;
            }
            (EdgeMessage::Heartbeat { steps }, State::Open, Role::Sender) => {
                self.stats.heartbeats_received += 1;
                self.acknowledge(now, steps)?;
            }
            (EdgeMessage::Goodbye { reason }, _, _) => {
                self.end();
                self.events.push_back(LinkEvent::Closed(reason));
            }
            _ => return Err(LinkFault::Unexpected(name)),
        }
        Ok(())
    }

    fn accept_hello(&mut self, now: Duration, hello: &EdgeMessage) -> Result<(), LinkFault> {
        let &EdgeMessage::Hello { protocol_version, pipeline, from, to, credit, steps } = hello
        else {
            return Err(LinkFault::Unexpected(hello.name()));
        };
        if protocol_version != PROTOCOL_VERSION {
            return Err(LinkFault::Version { got: protocol_version });
        }
        if pipeline != self.config.pipeline {
            return Err(LinkFault::Pipeline { got: pipeline, expected: self.config.pipeline });
        }
        if (from, to) != (self.config.from, self.config.to) {
            return Err(LinkFault::Ranks { from, to });
        }
        match self.role {
            Role::Sender => {
                check_count(steps, self.stats.steps_acknowledged, self.stats.steps)?;
                self.send_anew(steps);
            }
            Role::Receiver => {
                let most = self.stats.steps + u64::from(self.config.credit);
                check_count(steps, self.next_number, most.max(self.next_number))?;
                self.greeting = Some(self.hello());
                // What was acknowledged last may not have come through.
                self.heartbeat_due = self.has_opened();
            }
        }
        self.config.credit = credit.clamp(1, self.config.credit);
        self.state = State::Open;
        self.heartbeat_at = now + self.config.heartbeat_interval;
        let is_again = self.opened_at.replace(now).is_some();
        self.events.push_back(if is_again { LinkEvent::Rejoined } else { LinkEvent::Open });
        Ok(())
    }

    /// `steps` have come to the other side; the others go again, before those that have not left yet.
    fn send_anew(&mut self, steps: u64) {
        self.forget_before(steps);
        self.stats.steps = steps;
        while let Some(step) = self.kept.pop_back() {
            self.steps.push_front(step);
        }
    }

    /// The other side has the steps before this number.
    fn forget_before(&mut self, number: u64) {
        let first = self.stats.steps - self.kept.len() as u64;
        let known = usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX);
        self.kept.drain(..known.min(self.kept.len()));
    }

    fn accept_step(&mut self, now: Duration, step: Step, payload: Bytes) -> Result<(), LinkFault> {
        if step.pipeline != self.config.pipeline {
            self.stats.stale_steps += 1;
            return Ok(());
        }
        check_step(&step, &payload, self.next_number, self.carries())?;
        if self.next_number - self.stats.steps >= u64::from(self.config.credit) {
            return Err(LinkFault::Overrun { credit: self.config.credit });
        }
        self.next_number += 1;
        self.stats.progress_at = now;
        self.events.push_back(LinkEvent::Step(step, payload));
        Ok(())
    }

    fn acknowledge(&mut self, now: Duration, steps: u64) -> Result<(), LinkFault> {
        check_count(steps, self.stats.steps_acknowledged, self.stats.steps)?;
        if steps > self.stats.steps_acknowledged {
            self.forget_before(steps);
            self.stats.steps_acknowledged = steps;
            self.stats.progress_at = now;
            if std::mem::take(&mut self.wants_credit) {
                self.events.push_back(LinkEvent::Writable);
            }
        }
        Ok(())
    }

    fn hello(&self) -> Transmit {
        let LinkConfig { pipeline, from, to, credit, .. } = self.config;
        let protocol_version = PROTOCOL_VERSION;
        let steps = match self.role {
            Role::Sender => self.stats.steps,
            Role::Receiver => self.next_number,
        };
        bare(&EdgeMessage::Hello { protocol_version, pipeline, from, to, credit, steps })
    }

    fn say_goodbye(&mut self, reason: CloseReason) {
        if !self.is_closed() {
            self.end();
            self.greeting = Some(bare(&EdgeMessage::Goodbye { reason }));
        }
    }

    /// Steps stay: another stream may take them.
    fn end(&mut self) {
        self.greeting = None;
        self.state = State::Closed;
    }

    fn carries(&self) -> Carries {
        if self.config.to == Rank(0) { Carries::Wanted } else { Carries::EveryPosition }
    }

    fn silence_ends_at(&self) -> Duration {
        let LinkConfig { idle_timeout, loading_timeout, .. } = self.config;
        self.listening_from + if self.is_ready { idle_timeout } else { loading_timeout }
    }
}

impl EdgeMessage {
    const fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Step(_) => "step",
            Self::Heartbeat { .. } => "heartbeat",
            Self::Goodbye { .. } => "goodbye",
        }
    }
}

fn check_count(got: u64, least: u64, most: u64) -> Result<(), LinkFault> {
    let possible = least <= got && got <= most;
    if possible { Ok(()) } else { Err(LinkFault::Count { got, least, most }) }
}

/// A frame without payload.
fn bare(message: &EdgeMessage) -> Transmit {
    let header = frame::encode(message, 0).expect("a few numbers fit a frame");
    Transmit { header, payload: Bytes::new() }
}

/// Rows, and releases, of one step. Both at their longest are 2,048 × (10 + 5 + 5 + 1) + 2,048 × 10
/// = 63,488 bytes, which leaves 2,048 of [`frame::MAX_HEADER_BYTES`] for the fixed fields. One row
/// per running sequence: beyond what a chain of Macs decodes at once.
pub const MAX_ROWS: usize = 2048;
/// With S ranks at most S + 1 steps are on their way: enough for 15 ranks.
pub const DEFAULT_CREDIT: u32 = 16;
/// What a mistaken configuration can ask for at most.
const MAX_CREDIT: u32 = 256;
