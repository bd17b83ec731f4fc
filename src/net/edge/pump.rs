//! Moves the bytes of one edge: a [`Link`] on one side, a QUIC stream on the other.
//!
//! One loop, one wait: the wire, the owner's commands and the link's clock. Nothing polls, and no
//! timer stands between a step and the wire. Payloads are handed over as they are, never copied here.
//! The pump does not decide when a peer is lost or what fits a pipeline: the link does. Start at
//! [`Pump::run`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use bytes::Bytes;
use daisy_proto::frame::{Decoder, Limits};
use daisy_proto::link::{Link, LinkConfig, LinkEvent, Role};
use daisy_proto::{CloseReason, Step};
use quinn::{Connection, ConnectionError, RecvStream, SendStream};

use super::meet::Met;
use super::{EdgeEvent, Signal};
use crate::net::ending::{IntoLost, close, is_access_denied, reason_of};

pub(super) struct Pump {
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
    link: Link,
    decoder: Decoder,
    /// Frames that the link let go and the transport has not taken yet.
    outbox: VecDeque<Bytes>,
    steps: Option<Receiver<(Step, Bytes)>>,
    signal: Arc<Signal>,
    is_ready: bool,
    started: Instant,
    /// "edge to rank 1 at 10.0.0.2:4000"
    name: String,
}

/// How an edge ended.
enum End {
    /// The owner closed it: nobody has to be told here.
    Here(CloseReason),
    Peer(CloseReason),
    Failed {
        cause: String,
        tell: CloseReason,
    },
}

impl End {
    fn failed(cause: impl Into<String>, tell: CloseReason) -> Self {
        Self::Failed { cause: cause.into(), tell }
    }
}

impl Pump {
    pub(super) fn new(
        met: Met,
        config: LinkConfig,
        role: Role,
        steps: Option<Receiver<(Step, Bytes)>>,
        signal: Arc<Signal>,
        name: String,
    ) -> Self {
        Self {
            connection: met.connection,
            send: met.send,
            recv: met.recv,
            link: Link::new(config, role, Duration::ZERO),
            decoder: Decoder::new(Limits::EDGE),
            outbox: VecDeque::new(),
            steps,
            signal,
            is_ready: false,
            started: Instant::now(),
            name,
        }
    }

    /// Runs until the edge has ended and the peer knows it.
    pub(super) async fn run(mut self, sink: &(impl Fn(EdgeEvent) + Sync)) {
        let end = match self.turn_until_end(sink).await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        // Senders that wait for room in the queue must not wait for the farewell.
        self.steps = None;
        let tell = match end {
            End::Here(reason) => reason,
            End::Peer(reason) => {
                sink(EdgeEvent::Closed(reason));
                reason
            }
            End::Failed { cause, tell } => {
                sink(EdgeEvent::Failed { message: format!("{} failed: {cause}", self.name) });
                tell
            }
        };
        self.farewell(tell).await;
    }

    async fn turn_until_end(
        &mut self,
        sink: &(impl Fn(EdgeEvent) + Sync),
    ) -> Result<std::convert::Infallible, End> {
        let mut chunks = [const { Bytes::new() }; READ_CHUNKS];
        let mut alarm = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let mut alarm_at = Duration::ZERO;
        let mut timeout_is_due = false;
        let mut reported = 0;
        loop {
            self.obey()?;
            // In this order: what the owner takes can make a heartbeat due.
            reported += self.report(sink)?;
            self.collect();
            if reported >= REPORTED_AT_A_TIME {
                // The owner may be the one who runs this: it must get to what is reported before its
                // queue is full.
                reported = 0;
                tokio::task::yield_now().await;
            }
            if let Some(at) = self.link.poll_timeout()
                && (at < alarm_at || alarm.is_elapsed())
            {
                // Otherwise the alarm rings early and is set again: cheaper than moving it per step.
                alarm_at = at;
                alarm.as_mut().reset((self.started + at).into());
            }
            tokio::select! {
                biased;
                written = self.send.write_chunks(self.outbox.make_contiguous()),
                    if !self.outbox.is_empty() =>
                {
                    let written = written.map_err(|error| lost(&error.into_lost()))?;
                    self.outbox.drain(..written.chunks);
                }
                read = self.recv.read_chunks(&mut chunks) => {
                    let count = read.map_err(|error| lost(&error.into_lost()))?;
                    let Some(count) = count else { return Err(self.stream_ended()) };
                    self.take_in(chunks.iter_mut().take(count).map(std::mem::take))?;
                }
                () = self.signal.notify.notified() => {}
                () = &mut alarm, if !timeout_is_due => {
                    // After a spell without CPU the peer's frames may still lie in the socket: let the
                    // endpoint and the connection fetch them, so that our own delay is not taken for
                    // the peer's silence.
                    for _ in 0..TURNS_TO_FETCH {
                        tokio::task::yield_now().await;
                    }
                    timeout_is_due = true;
                }
                // Last of all: whatever has come was handled above.
                () = std::future::ready(()), if timeout_is_due => {
                    timeout_is_due = false;
                    self.link.handle_timeout(self.now());
                }
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The owner's commands. Steps are taken one at a time and only while the link has credit and the
    /// transport keeps up, so that what waits stays in the bounded queue.
    fn obey(&mut self) -> Result<(), End> {
        if let Some(reason) = self.signal.close.get() {
            self.link.close(*reason);
            return Err(End::Here(*reason));
        }
        if !self.is_ready && self.signal.is_ready.load(Ordering::Acquire) {
            self.is_ready = true;
            self.link.set_ready(self.now());
        }
        if !self.outbox.is_empty() || self.link.credit_left() == 0 {
            return Ok(());
        }
        let Some((step, payload)) = self.steps.as_ref().and_then(|steps| steps.try_recv().ok())
        else {
            return Ok(());
        };
        let number = step.number;
        self.link.send_step(self.now(), step, payload).map_err(|error| {
            self.link.close(CloseReason::Internal);
            End::failed(format!("step {number} cannot be sent: {error}"), CloseReason::Internal)
        })
    }

    /// What the link wants on the wire.
    fn collect(&mut self) {
        while let Some(transmit) = self.link.poll_transmit() {
            self.outbox.push_back(transmit.header);
            if !transmit.payload.is_empty() {
                self.outbox.push_back(transmit.payload);
            }
        }
    }

    /// What the link tells the owner; says how much that was.
    fn report(&mut self, sink: &(impl Fn(EdgeEvent) + Sync)) -> Result<usize, End> {
        let mut count = 0;
        while let Some(event) = self.link.poll_event() {
            count += 1;
            match event {
                LinkEvent::Open => sink(EdgeEvent::Open),
                LinkEvent::Step(step, payload) => sink(EdgeEvent::Step(step, payload)),
                // Each turn asks for credit anyway.
                LinkEvent::Writable => {}
                LinkEvent::Closed(reason) => {
                    return Err(match self.link.fault() {
                        Some(fault) => End::failed(fault.to_string(), reason),
                        None => End::Peer(reason),
                    });
                }
                LinkEvent::Lost { silent_ms } => {
                    let cause = format!("nothing was heard for {silent_ms} ms");
                    return Err(End::failed(cause, CloseReason::Silent));
                }
            }
        }
        Ok(count)
    }

    fn take_in(&mut self, chunks: impl Iterator<Item = Bytes>) -> Result<(), End> {
        for chunk in chunks {
            self.decoder.push(chunk);
            loop {
                match self.decoder.next() {
                    Ok(Some(frame)) => self.link.handle_frame(self.started.elapsed(), frame),
                    Ok(None) => break,
                    Err(error) => {
                        self.link.close(CloseReason::BadFrame);
                        return Err(End::failed(error.to_string(), CloseReason::BadFrame));
                    }
                }
            }
        }
        Ok(())
    }

    fn stream_ended(&self) -> End {
        let cause = match self.decoder.finish() {
            Ok(()) => "the peer ended the stream without a goodbye".to_owned(),
            Err(error) => error.to_string(),
        };
        End::failed(cause, CloseReason::BadFrame)
    }

    /// Sends the goodbye after what is already under way, then closes. The peer gets the reason even
    /// if the goodbye does not arrive in time: the close carries it too.
    async fn farewell(mut self, reason: CloseReason) {
        self.collect();
        let goodbye = async {
            self.send.write_all_chunks(self.outbox.make_contiguous()).await.ok()?;
            self.send.finish().ok()?;
            self.send.stopped().await.ok()
        };
        if reason != CloseReason::Silent {
            let _ = tokio::time::timeout(GOODBYE_WAIT, goodbye).await;
        }
        close(&self.connection, reason);
    }
}

/// How an edge ends when its connection does.
fn lost(error: &ConnectionError) -> End {
    let cause = match error {
        ConnectionError::ApplicationClosed(closed) => {
            return End::Peer(reason_of(closed.error_code));
        }
        ConnectionError::TimedOut => "nothing was heard until the connection expired".to_owned(),
        ConnectionError::Reset => "the peer has restarted".to_owned(),
        error if is_access_denied(error) => "the peer expects another key".to_owned(),
        error => error.to_string(),
    };
    End::failed(cause, CloseReason::Silent)
}

/// Chunks per read: a chunk is what one packet carried, so this is 100–200 KB.
const READ_CHUNKS: usize = 32;
/// As many steps as the link lets come between two reports, so the owner's queue needs room for twice
/// this per edge.
const REPORTED_AT_A_TIME: usize = daisy_proto::link::DEFAULT_CREDIT as usize;
/// Socket → endpoint → connection → stream, and one to spare.
const TURNS_TO_FETCH: usize = 4;
const GOODBYE_WAIT: Duration = Duration::from_millis(250);
