//! Moves the bytes of one edge: a [`Link`] on one side, a QUIC stream on the other.
//!
//! One loop, one wait: the wire, the owner's commands and the link's clock. Nothing polls, and no
//! timer stands between a step and the wire. Payloads are handed over as they are, never copied here.
//! The pump does not decide when a peer is lost or what fits a pipeline: the link does. When nothing comes
//! through any more, it looks for the peer on the edge's other ways, and the link goes on there. Start at
//! [`Pump::run`].

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use bytes::Bytes;
use daisy_proto::control::Way;
use daisy_proto::frame::{Decoder, Limits};
use daisy_proto::link::{Link, LinkEvent};
use daisy_proto::{CloseReason, Step};
use quinn::{ConnectionError, Endpoint};

use super::meet::{Met, Route};
use super::{EdgeConfig, EdgeEvent, Signal};
use crate::net::ending::{IntoLost, close, is_access_denied, reason_of};

pub(super) struct Pump {
    met: Met,
    route: Route,
    config: EdgeConfig,
    /// The owner has named better ways: they are dialled while the edge goes on.
    moving: Option<Meeting>,
    /// The path that was left. Kept, streams and all, until the peer has followed: its end would be taken
    /// for the edge's.
    left: Option<Met>,
    /// Why the edge moves; told when it has.
    cause: String,
    link: Link,
    decoder: Decoder,
    /// Frames that the link let go and the transport has not taken yet.
    outbox: VecDeque<Bytes>,
    steps: Option<Receiver<(Step, Bytes)>>,
    signal: Arc<Signal>,
    is_ready: bool,
    started: Instant,
    /// "edge to rank 1"
    name: String,
}

type Meeting = Pin<Box<dyn Future<Output = Result<Met, String>> + Send>>;

/// How an edge ended.
enum End {
    /// The owner closed it: nobody has to be told here.
    Here(CloseReason),
    Peer(CloseReason),
    /// Nothing comes through, as this side sees or the peer says; another path may carry the edge on.
    Path {
        cause: String,
        by_peer: bool,
    },
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
        route: Route,
        config: EdgeConfig,
        link: Link,
        steps: Option<Receiver<(Step, Bytes)>>,
        signal: Arc<Signal>,
        name: String,
    ) -> Self {
        Self {
            met,
            route,
            config,
            moving: None,
            left: None,
            cause: String::new(),
            link,
            decoder: Decoder::new(Limits::EDGE),
            outbox: VecDeque::new(),
            steps,
            signal,
            is_ready: false,
            started: Instant::now(),
            name,
        }
    }

    /// Runs until the edge has ended and the peer knows it; gives what the close leaves by.
    pub(super) async fn run(mut self, sink: &(impl Fn(EdgeEvent) + Sync)) -> Endpoint {
        let end = loop {
            let Err(end) = self.turn_until_end(sink).await;
            if let Err(end) = self.look_for_another_path(end).await {
                break end;
            }
        };
        // Senders that wait for room in the queue must not wait for the farewell.
        self.steps = None;
        let name = format!("{} at {}", self.name, self.met.remote());
        let tell = match end {
            End::Here(reason) => reason,
            End::Peer(reason) => {
                sink(EdgeEvent::Closed(reason));
                reason
            }
            End::Path { by_peer: true, .. } => {
                sink(EdgeEvent::Closed(CloseReason::Silent));
                CloseReason::Silent
            }
            End::Path { cause, by_peer: false } => {
                sink(EdgeEvent::Failed { message: format!("{name} failed: {cause}") });
                CloseReason::Silent
            }
            End::Failed { cause, tell } => {
                sink(EdgeEvent::Failed { message: format!("{name} failed: {cause}") });
                tell
            }
        };
        self.farewell(tell).await
    }

    /// Well: the edge goes on. Else: how it has ended.
    async fn look_for_another_path(&mut self, end: End) -> Result<(), End> {
        let End::Path { cause, by_peer } = end else { return Err(end) };
        if !self.link.has_opened() || !self.route.may_have_another() {
            return Err(End::Path { cause, by_peer });
        }
        tracing::info!("{}: {cause}; looking for another path", self.name);
        // The peer may still hear this side, and wait.
        close(&self.met.connection, CloseReason::Silent);
        self.moving = None;
        let connect_timeout = match self.route {
            Route::Dial { .. } => SEEK_MAX,
            Route::Listen(_) => AWAIT_MAX,
        };
        let config = EdgeConfig { connect_timeout, ..self.config };
        let signal = Arc::clone(&self.signal);
        let met = tokio::select! {
            biased;
            reason = signal.closed() => return Err(End::Here(reason)),
            met = self.route.meet(config) => met,
        };
        match met {
            Ok(met) => {
                self.go_on_by(met, cause);
                Ok(())
            }
            Err(why) => {
                tracing::info!("{}: {why}", self.name);
                Err(End::Path { cause, by_peer })
            }
        }
    }

    /// From here on the frames take another connection.
    fn go_on_by(&mut self, met: Met, cause: String) {
        self.left = Some(std::mem::replace(&mut self.met, met));
        self.cause = cause;
        self.decoder = Decoder::new(Limits::EDGE);
        // The link knows which steps have come through, and sends the others anew.
        self.outbox.clear();
        self.link.rejoin(self.now());
    }

    /// The owner's better ways are dialled beside the work; they also serve when the path is lost.
    fn begin_to_move(&mut self, better: Vec<Way>) {
        let Route::Dial { key, ways } = &mut self.route else { return };
        ways.clone_from(&better);
        if better.first() == self.met.way.as_ref() {
            return;
        }
        let mut route = Route::Dial { key: key.clone(), ways: better };
        let config = EdgeConfig { connect_timeout: SEEK_MAX, ..self.config };
        self.moving = Some(Box::pin(async move { route.meet(config).await }));
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
                written = self.met.send.write_chunks(self.outbox.make_contiguous()),
                    if !self.outbox.is_empty() =>
                {
                    let written = written.map_err(|error| lost(&error.into_lost()))?;
                    self.outbox.drain(..written.chunks);
                }
                read = self.met.recv.read_chunks(&mut chunks) => {
                    let count = read.map_err(|error| lost(&error.into_lost()))?;
                    let Some(count) = count else { return Err(self.stream_ended()) };
                    self.take_in(chunks.iter_mut().take(count).map(std::mem::take))?;
                }
                () = self.signal.notify.notified() => {}
                met = another(&mut self.route, &mut self.moving) => match met {
                    Ok(met) => self.go_on_by(met, "a better link".to_owned()),
                    Err(why) => tracing::info!("{}: it stays where it is: {why}", self.name),
                },
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
        if let Some(ways) = self.signal.take_ways() {
            self.begin_to_move(ways);
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
                LinkEvent::Rejoined => self.has_moved(sink),
                LinkEvent::Step(step, payload) => sink(EdgeEvent::Step(step, payload)),
                // Each turn asks for credit anyway.
                LinkEvent::Writable => {}
                LinkEvent::Closed(reason) => {
                    return Err(match self.link.fault() {
                        Some(fault) => End::failed(fault.to_string(), reason),
                        None => ended_by_peer(reason),
                    });
                }
                LinkEvent::Lost { silent_ms } => {
                    let cause = format!("nothing was heard for {silent_ms} ms");
                    return Err(End::Path { cause, by_peer: false });
                }
            }
        }
        Ok(count)
    }

    fn has_moved(&mut self, sink: &(impl Fn(EdgeEvent) + Sync)) {
        if let Some(left) = self.left.take() {
            close(&left.connection, CloseReason::Unstated);
        }
        let cause = std::mem::take(&mut self.cause);
        tracing::info!("{} goes on at {}: {cause}", self.name, self.met.remote());
        if let Some(way) = self.met.way.clone() {
            sink(EdgeEvent::Moved { way, cause });
        }
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
    async fn farewell(mut self, reason: CloseReason) -> Endpoint {
        self.collect();
        let goodbye = async {
            self.met.send.write_all_chunks(self.outbox.make_contiguous()).await.ok()?;
            self.met.send.finish().ok()?;
            self.met.send.stopped().await.ok()
        };
        if reason != CloseReason::Silent {
            let _ = tokio::time::timeout(GOODBYE_WAIT, goodbye).await;
        }
        close(&self.met.connection, reason);
        self.met.endpoint
    }
}

/// The peer by another connection: one that it has dialled, or one that this side dials.
async fn another(route: &mut Route, moving: &mut Option<Meeting>) -> Result<Met, String> {
    match moving {
        Some(meeting) => {
            let met = meeting.await;
            *moving = None;
            met
        }
        None => Ok(route.guest().await),
    }
}

/// One that hears nothing looks for another path, and this side is to look too.
fn ended_by_peer(reason: CloseReason) -> End {
    match reason {
        CloseReason::Silent => {
            End::Path { cause: "the peer hears nothing".to_owned(), by_peer: true }
        }
        reason => End::Peer(reason),
    }
}

/// How an edge ends when its connection does.
fn lost(error: &ConnectionError) -> End {
    let cause = match error {
        ConnectionError::ApplicationClosed(closed) => {
            return ended_by_peer(reason_of(closed.error_code));
        }
        ConnectionError::TimedOut => {
            let cause = "nothing was heard until the connection expired".to_owned();
            return End::Path { cause, by_peer: false };
        }
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
/// For the sender to come through by another way: a handshake, and a head start for each that is better.
const SEEK_MAX: Duration = Duration::from_secs(2);
/// For the receiver to see it come. The sender may notice half a second later that a path is dead.
const AWAIT_MAX: Duration = Duration::from_secs(3);
const GOODBYE_WAIT: Duration = Duration::from_millis(250);
