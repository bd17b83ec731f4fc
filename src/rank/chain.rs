//! The rank's loop: frames in, engine, frames out; on rank 0 also the scheduler and the sampler.
//!
//! Rank 0 starts every step and every step comes back to it. A chain of length one runs the same
//! code: its frames turn round in [`Edges`].

use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use bytes::Bytes;
use daisy_proto::local::{FromRank, RankStart, ToRank};
use daisy_proto::{CloseReason, Hidden, PipelineId, Rank, Row, SeqId, Step};

use super::edges::{Edges, ring};
use super::watchdog::Watchdog;
use super::{Event, RankError};
use crate::engine::{Carried, Draw, Engine};
use crate::ipc::BlockingWriter;
use crate::net::{EdgeEvent, Inbox};
use crate::schedule::{Drawn, Output, Pick, Scheduler};

/// One rank at work.
#[derive(Debug)]
pub(crate) struct Chain<'a> {
    pipeline: PipelineId,
    rank: Rank,
    world: u32,
    engine: Engine,
    edges: Edges,
    node: &'a mut BlockingWriter,
    /// Idle on ranks other than 0.
    scheduler: Scheduler,
    /// Rows that came back and wait for their group, as the scheduler holds their sequences.
    held: Vec<Held>,
    edges_open: usize,
    working: bool,
    /// An edge has ended. Its own node knows why, and this rank waits to be told to unload.
    cut: bool,
    origin: Instant,
    watchdog: Watchdog,
}

/// Rows of one step, a sequence each.
#[derive(Debug)]
struct Held {
    seqs: Vec<SeqId>,
    hidden: Carried,
}

/// Whether the loop goes on.
#[derive(Debug, PartialEq, Eq)]
enum Flow {
    On,
    Unload,
}

impl<'a> Chain<'a> {
    pub(crate) fn new(
        start: &RankStart,
        engine: Engine,
        edges: Edges,
        node: &'a mut BlockingWriter,
        watchdog: Watchdog,
    ) -> Self {
        Self {
            pipeline: start.pipeline,
            rank: start.rank,
            world: start.world,
            engine,
            edges,
            node,
            scheduler: Scheduler::new(start.world, start.chunk, start.budget),
            held: Vec::new(),
            edges_open: 0,
            working: false,
            cut: false,
            origin: Instant::now(),
            watchdog,
        }
    }

    /// Runs until the node says unload; tells the neighbours why it ends.
    pub(crate) fn run(mut self, events: &Inbox<Event>) -> Result<(), RankError> {
        let outcome = self.serve(events);
        self.edges.close(match &outcome {
            Ok(()) => CloseReason::Done,
            Err(RankError::Edge { .. }) => CloseReason::NeighbourLost,
            Err(RankError::Engine(_)) => CloseReason::EngineFailed,
            Err(_) => CloseReason::Internal,
        });
        outcome
    }

    fn serve(&mut self, events: &Inbox<Event>) -> Result<(), RankError> {
        while self.edges_open < self.edges.expected() {
            let Some(event) = events.recv() else { return Ok(()) };
            if self.handle(event)? == Flow::Unload {
                return Ok(());
            }
        }
        self.node.write(&FromRank::Ready {
            resident_bytes: self.engine.resident_bytes(),
            device: self.engine.device().to_owned(),
            dtype: self.engine.dtype(),
        })?;
        loop {
            self.watchdog.begin();
            // Events first: a cancellation or a frame that came back goes before new work.
            let event = match events.try_recv() {
                Ok(event) => event,
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {
                    if !self.cut && self.work()? {
                        continue;
                    }
                    self.watchdog.end();
                    let Some(event) = events.recv() else { return Ok(()) };
                    self.watchdog.begin();
                    event
                }
            };
            if self.handle(event)? == Flow::Unload {
                return Ok(());
            }
        }
    }

    fn handle(&mut self, event: Event) -> Result<Flow, RankError> {
        let (previous, next) = ring(self.rank, self.world);
        match event {
            Event::Node(ToRank::Unload) => return Ok(Flow::Unload),
            Event::Node(ToRank::Admit(admit)) => {
                self.begin();
                self.scheduler.admit(self.now(), admit)?;
            }
            Event::Node(ToRank::Cancel { seq }) => {
                let output = self.scheduler.cancel(self.now(), seq);
                self.tell(output.into_iter().collect())?;
            }
            Event::Node(ToRank::Shrink) => self.engine.shrink()?,
            Event::Node(ToRank::Reroute { ways }) => self.edges.reroute(ways),
            Event::Node(ToRank::Start(_) | ToRank::Connect { .. }) => {
                return Err(RankError::OutOfTurn("a second start"));
            }
            Event::Previous(event) => self.edge(previous, event)?,
            Event::Next(event) => self.edge(next, event)?,
        }
        Ok(Flow::On)
    }

    fn edge(&mut self, neighbour: Rank, event: EdgeEvent) -> Result<(), RankError> {
        match event {
            EdgeEvent::Open => self.edges_open += 1,
            EdgeEvent::Step(..) if self.cut => {}
            EdgeEvent::Step(step, payload) => {
                self.begin();
                self.step(step, payload)?;
            }
            // The neighbour ended by itself, and its node hears from it what happened: its own words
            // say more than the reason of a close, and to accuse it here could blame the wrong rank.
            EdgeEvent::Closed(reason) => {
                tracing::info!(%neighbour, %reason, "the neighbour closed its edge");
                self.cut = true;
            }
            EdgeEvent::Moved { way, cause } => {
                self.node.write(&FromRank::Moved { way, cause })?;
            }
            EdgeEvent::Failed { message } => return Err(RankError::Edge { neighbour, message }),
        }
        Ok(())
    }

    /// The first work shows that every rank has loaded: silence counts from now on.
    fn begin(&mut self) {
        if !self.working {
            self.working = true;
            self.edges.set_ready();
        }
    }

    fn step(&mut self, step: Step, payload: Bytes) -> Result<(), RankError> {
        let hidden = Hidden::new(step.dtype, step.tokens, step.width, payload)?;
        if self.rank.0 == 0 {
            return self.returned(step.number, hidden.into());
        }
        self.engine.release(&step.release);
        let out =
            if step.rows.is_empty() { hidden } else { self.engine.forward(&step.rows, hidden)? };
        let step = Step { dtype: out.dtype, tokens: out.tokens, width: out.width, ..step };
        self.pass_on(step, out.into())
    }

    /// Rank 0: work that needs no event. Says whether there was any.
    fn work(&mut self) -> Result<bool, RankError> {
        let mut worked = false;
        if let Some((step, hidden)) = self.edges.looped() {
            self.returned(step.number, hidden)?;
            worked = true;
        }
        if let Some(chunk) = self.scheduler.next_chunk(self.now()) {
            self.engine.release(&self.scheduler.freed());
            let hidden = self.engine.embed_forward(&chunk.rows, &chunk.tokens)?;
            let (number, release) = self.scheduler.sent(chunk.rows.clone());
            self.send(number, release, chunk.rows, hidden.into())?;
            worked = true;
        }
        if !worked && self.scheduler.owes_release() {
            self.engine.release(&self.scheduler.freed());
            let nothing = Hidden::empty(self.engine.dtype(), self.engine.width());
            let (number, release) = self.scheduler.sent(Vec::new());
            self.send(number, release, Vec::new(), nothing.into())?;
            worked = true;
        }
        Ok(worked)
    }

    /// Rank 0: a step came round. What it brought is held until its group draws.
    fn returned(&mut self, number: u64, hidden: Carried) -> Result<(), RankError> {
        // A sequence that lost its place may come back: its old rows must not be taken for new ones.
        self.keep_held();
        let seqs = self.scheduler.returned(number)?;
        let wanted: Vec<bool> = seqs.iter().map(Option::is_some).collect();
        let seqs: Vec<SeqId> = seqs.into_iter().flatten().collect();
        if !seqs.is_empty() {
            self.held.push(Held { seqs, hidden: hidden.keep(&wanted) });
        }
        while let Some(picks) = self.scheduler.next_group() {
            self.draw(&picks)?;
        }
        Ok(())
    }

    /// Draws a group's tokens and starts the next step of the same sequences.
    fn draw(&mut self, picks: &[Pick]) -> Result<(), RankError> {
        let hidden = self.take_held(picks);
        self.engine.release(&self.scheduler.freed());
        let wishes: Vec<Draw<'_>> = picks.iter().map(|pick| draw(pick, &self.scheduler)).collect();
        let sampled = self.engine.sample(hidden, &wishes)?;
        let (tokens, logprobs) = (sampled.tokens()?, sampled.logprobs()?);
        let drawn = picks.iter().zip(tokens).zip(logprobs);
        let drawn = drawn.map(|((pick, token), logprobs)| Drawn { pick: *pick, token, logprobs });
        let (outputs, rows) = self.scheduler.drawn(self.origin.elapsed(), drawn.collect());
        // The tokens go out while the next step's hidden state is still being computed.
        tell(self.node, outputs)?;
        let ahead = sampled.advanced();
        if !rows.is_empty() {
            let going_on: Vec<bool> = picks
                .iter()
                .filter(|pick| pick.advance)
                .map(|pick| rows.iter().any(|row| row.seq == pick.seq))
                .collect();
            let (number, release) = self.scheduler.sent_group(rows.clone());
            self.send(number, release, rows, ahead.keep(&going_on))?;
        }
        Ok(())
    }

    /// The rows of a group, in the order of its picks, which is that of the held rows.
    fn take_held(&mut self, picks: &[Pick]) -> Carried {
        let mut parts = Vec::new();
        for Held { seqs, hidden } in &self.held {
            let drawn: Vec<bool> =
                seqs.iter().map(|seq| picks.iter().any(|pick| pick.seq == *seq)).collect();
            if drawn.contains(&true) {
                parts.push(hidden.clone().keep(&drawn));
            }
        }
        self.keep_held();
        Carried::join(parts)
    }

    /// Drops rows that are held no longer.
    fn keep_held(&mut self) {
        for Held { seqs, hidden } in std::mem::take(&mut self.held) {
            let kept: Vec<bool> = seqs.iter().map(|seq| self.scheduler.holds(*seq)).collect();
            let seqs: Vec<SeqId> = seqs
                .into_iter()
                .zip(&kept)
                .filter(|(_, kept)| **kept)
                .map(|(seq, _)| seq)
                .collect();
            if !seqs.is_empty() {
                self.held.push(Held { seqs, hidden: hidden.keep(&kept) });
            }
        }
    }

    fn send(
        &mut self,
        number: u64,
        release: Vec<SeqId>,
        rows: Vec<Row>,
        hidden: Carried,
    ) -> Result<(), RankError> {
        let step = Step {
            pipeline: self.pipeline,
            number,
            rows,
            release,
            dtype: hidden.dtype(),
            tokens: hidden.tokens(),
            width: hidden.width(),
        };
        self.pass_on(step, hidden)
    }

    /// A closed edge has left its last event in the queue, which says more than this could.
    fn pass_on(&mut self, step: Step, hidden: Carried) -> Result<(), RankError> {
        self.cut |= !self.edges.send(step, hidden)?;
        Ok(())
    }

    fn tell(&mut self, outputs: Vec<Output>) -> Result<(), RankError> {
        tell(self.node, outputs)
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

fn tell(node: &mut BlockingWriter, outputs: Vec<Output>) -> Result<(), RankError> {
    for output in outputs {
        node.write(&match output {
            Output::Token { seq, index, token, logprobs } => {
                FromRank::Token { seq, index, token, logprobs }
            }
            Output::Finished { seq, reason, timings } => {
                FromRank::Finished { seq, reason, timings }
            }
        })?;
    }
    Ok(())
}

fn draw<'a>(pick: &Pick, scheduler: &'a Scheduler) -> Draw<'a> {
    let Pick { seq, position, sampling, logprobs, advance } = *pick;
    let (past, bias) = (scheduler.past(seq), scheduler.bias(seq));
    Draw { seq, position, sampling, past, bias, logprobs, advance }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use daisy_proto::local::Budget;
    use daisy_proto::{LayerRange, Shard};

    use super::*;
    use crate::engine::LoadRequest;
    use crate::model::ModelConfig;
    use crate::store::Checkpoint;

    #[test]
    fn a_neighbour_that_ends_by_itself_is_not_accused() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/llama-f32");
        let checkpoint = Checkpoint::open(&dir).expect("the checkpoint");
        let config = ModelConfig::parse(&checkpoint.config_json).expect("its config");
        let shard = Shard::of(Rank(0), LayerRange::new(0, config.layers));
        let request =
            LoadRequest { config, files: checkpoint.files, shard, is_last: true, dtype: None };
        let engine = Engine::load(&request, &mut |_| {}).expect("loads");
        let start = RankStart {
            pipeline: PipelineId(1),
            rank: Rank(0),
            world: 2,
            shard,
            checkpoint: dir,
            dtype: None,
            bind: ([127, 0, 0, 1], 0).into(),
            chunk: 8,
            budget: Budget { sequences: 4, tokens: 1024 },
            needs_bytes: 0,
        };
        let (node, _here) = UnixStream::pair().expect("a pair");
        let mut node = BlockingWriter::new(node);
        let edges = Edges::Loop(std::collections::VecDeque::new());
        let watchdog = Watchdog::start(Duration::from_mins(10), || {});
        let mut chain = Chain::new(&start, engine, edges, &mut node, watchdog);
        for reason in CloseReason::ALL {
            chain.cut = false;
            chain.edge(Rank(1), EdgeEvent::Closed(*reason)).expect("its own node says why");
            assert!(chain.cut, "{reason:?}: nothing is computed for an edge that is closed");
        }
        let silent = EdgeEvent::Failed { message: "nothing was heard".to_owned() };
        let error = chain.edge(Rank(1), silent).expect_err("nobody else can tell");
        assert!(matches!(error, RankError::Edge { neighbour: Rank(1), .. }), "{error:?}");
    }
}
