//! Which sequences compute what next. Rank 0 drives it; it knows neither engine, socket nor clock
//! (`now` is an argument).
//!
//! Sequences that decode go in groups: one step carries one position of each sequence of a group, so
//! that weights are read once for all of them, and there is a group for every rank, so that none
//! idles. Whose hidden state has come back is held until its group forms; groups are never larger
//! than an equal share, so that they do not drift together. Prompts go in chunks between them. All
//! that is cached stays within the budget: when it runs out the youngest sequence gives way and
//! computes its tokens again later. Start at [`Scheduler`].

mod past;
mod sequence;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use daisy_proto::local::{Admit, Budget, FinishReason, Timings};
use daisy_proto::{Logprobs, Row, Sampling, SeqId};

use sequence::{Leaving, Sequence};

/// Frames on their way round the ring. Below the credit of an edge (16), so that a send never waits.
const IN_FLIGHT_MAX: usize = 14;

/// Scheduler of rank 0: a pure state machine.
#[derive(Debug)]
pub struct Scheduler {
    world: usize,
    chunk: u32,
    budget: Budget,
    waiting: VecDeque<Sequence>,
    active: BTreeMap<SeqId, Sequence>,
    /// Active sequences whose known tokens are not fully sent, oldest first.
    prefilling: VecDeque<SeqId>,
    /// Sequences whose hidden state came back and whose next token was not drawn yet, in the order
    /// in which it came.
    held: VecDeque<SeqId>,
    /// Sequences whose KV rank 0 has not freed yet.
    freed: Vec<SeqId>,
    /// Those of which the other ranks have not been told yet.
    released: Vec<SeqId>,
    in_flight: VecDeque<InFlight>,
    next_step: u64,
    next_turn: u64,
}

/// What rank 0 computes and sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub rows: Vec<Row>,
    pub tokens: Vec<u32>,
}

/// A token to draw from a held row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pick {
    pub seq: SeqId,
    /// Position that the drawn token takes.
    pub position: u32,
    pub sampling: Sampling,
    /// As the sequence's [`Admit::logprobs`].
    pub logprobs: Option<u32>,
    /// Whether the next position is computed in the same submission.
    pub advance: bool,
}

/// What was drawn for a pick.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    pub pick: Pick,
    pub token: u32,
    pub logprobs: Option<Logprobs>,
}

/// What the node hears of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    Token { seq: SeqId, index: u32, token: u32, logprobs: Option<Logprobs> },
    Finished { seq: SeqId, reason: FinishReason, timings: Timings },
}

#[derive(Debug)]
struct InFlight {
    number: u64,
    rows: Vec<Row>,
    /// A group's step rather than a chunk of a prompt.
    decodes: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("step {got} came back where step {expected:?} was expected")]
    OutOfOrder { expected: Option<u64>, got: u64 },
    #[error("sequence {0} was admitted twice")]
    Doubled(SeqId),
    #[error("sequence {0} has an empty prompt or asks for no token")]
    Empty(SeqId),
}

impl Scheduler {
    /// For a chain of `world` ranks. A sequence alone always fits the budget: the node admits none
    /// that is longer.
    pub fn new(world: u32, chunk: u32, budget: Budget) -> Self {
        Self {
            world: world.max(1) as usize,
            chunk: chunk.max(1),
            budget,
            waiting: VecDeque::new(),
            active: BTreeMap::new(),
            prefilling: VecDeque::new(),
            held: VecDeque::new(),
            freed: Vec::new(),
            released: Vec::new(),
            in_flight: VecDeque::new(),
            next_step: 0,
            next_turn: 0,
        }
    }

    /// Takes a sequence into the queue.
    pub fn admit(&mut self, now: Duration, admit: Admit) -> Result<(), ScheduleError> {
        let seq = admit.seq;
        if admit.prompt.is_empty() || admit.max_tokens == 0 {
            return Err(ScheduleError::Empty(seq));
        }
        if self.active.contains_key(&seq) || self.waiting.iter().any(|s| s.admit.seq == seq) {
            return Err(ScheduleError::Doubled(seq));
        }
        self.waiting.push_back(Sequence::new(now, admit));
        Ok(())
    }

    /// Ends a sequence. What of it is in flight still comes back, and is dropped then.
    pub fn cancel(&mut self, now: Duration, seq: SeqId) -> Option<Output> {
        if let Some(at) = self.waiting.iter().position(|s| s.admit.seq == seq) {
            let sequence = self.waiting.remove(at)?;
            return Some(sequence.finished(now, FinishReason::Cancelled));
        }
        let sequence = self.active.get(&seq)?;
        if sequence.leaving == Some(Leaving::Ended) {
            return None;
        }
        let output = sequence.finished(now, FinishReason::Cancelled);
        self.leave(seq, Leaving::Ended);
        Some(output)
    }

    /// The next prefill chunk, if one may be sent now. Send it with [`Self::sent`].
    pub fn next_chunk(&mut self, now: Duration) -> Option<Chunk> {
        self.activate(now);
        let seq = *self.prefilling.front()?;
        // Room is kept for every group that may still form. A later prompt waits for the first:
        // chunks of one prompt fill the pipeline by themselves.
        let groups = self.groups_max().saturating_sub(self.groups_in_flight());
        let is_full = self.in_flight.len() + groups >= IN_FLIGHT_MAX;
        if is_full || self.steps_in_flight(seq) > self.world {
            return None;
        }
        let sequence = self.active.get_mut(&seq).expect("a prefilling sequence is active");
        let known = sequence.known();
        let (first, count) = (sequence.sent, self.chunk.min(known - sequence.sent));
        sequence.sent += count;
        let is_last = sequence.sent == known;
        let tokens = sequence.tokens(first, count);
        if is_last {
            self.prefilling.pop_front();
        }
        Some(Chunk { rows: vec![Row { seq, first, count, logits: is_last }], tokens })
    }

    /// Records that a chunk, or nothing but releases, goes out; gives the step's number and the
    /// releases that travel with it.
    pub fn sent(&mut self, rows: Vec<Row>) -> (u64, Vec<SeqId>) {
        self.send(rows, false)
    }

    /// The same of a group's rows, as [`Self::drawn`] gave them.
    pub fn sent_group(&mut self, rows: Vec<Row>) -> (u64, Vec<SeqId>) {
        for row in &rows {
            if let Some(sequence) = self.active.get_mut(&row.seq) {
                sequence.sent = row.first + row.count;
            }
        }
        self.send(rows, true)
    }

    /// What rank 0 must free before it computes anything: one of them may begin again with that.
    pub fn freed(&mut self) -> Vec<SeqId> {
        std::mem::take(&mut self.freed)
    }

    /// Whether the other ranks must be told of ended sequences though no step is due.
    pub fn owes_release(&self) -> bool {
        !self.released.is_empty() && self.in_flight.len() < IN_FLIGHT_MAX
    }

    /// A step came back. For each returned hidden row: the sequence that it is held for now, or none
    /// where that is no longer wanted.
    pub fn returned(&mut self, number: u64) -> Result<Vec<Option<SeqId>>, ScheduleError> {
        let expected = self.in_flight.front().map(|step| step.number);
        if expected != Some(number) {
            return Err(ScheduleError::OutOfOrder { expected, got: number });
        }
        let step = self.in_flight.pop_front().expect("the front was just read");
        let mut held = Vec::new();
        for row in step.rows {
            let sequence = self.active.get(&row.seq).expect("a row in flight keeps its sequence");
            let leaving = sequence.leaving;
            if row.logits {
                held.push(leaving.is_none().then_some(row.seq));
            }
            match leaving {
                None if row.logits => self.held.push_back(row.seq),
                None => {}
                Some(_) => self.settle(row.seq),
            }
        }
        Ok(held)
    }

    /// The sequences that draw now and go on as one group, in the order in which they are held;
    /// none: whoever is held waits for a group that is under way.
    pub fn next_group(&mut self) -> Option<Vec<Pick>> {
        if self.held.is_empty() || self.groups_in_flight() >= self.groups_max() {
            return None;
        }
        if !self.make_room() {
            return None;
        }
        let share = self.decoding().div_ceil(self.groups_max().max(1));
        let count = share.min(self.held.len());
        let group: Vec<SeqId> = self.held.drain(..count).collect();
        let picks = group.iter().filter_map(|seq| self.active.get(seq)).map(Sequence::pick);
        Some(picks.collect()).filter(|picks: &Vec<Pick>| !picks.is_empty())
    }

    /// Whether a row of `seq` is still held.
    pub fn holds(&self, seq: SeqId) -> bool {
        self.held.contains(&seq)
    }

    /// Tokens were drawn. Gives what the node hears and the rows that go on to the next step: the
    /// computed-ahead row of a sequence that ended is left out.
    pub fn drawn(&mut self, now: Duration, drawn: Vec<Drawn>) -> (Vec<Output>, Vec<Row>) {
        let mut outputs = Vec::with_capacity(drawn.len());
        let mut rows = Vec::new();
        for Drawn { pick, token, logprobs } in drawn {
            let seq = pick.seq;
            let sequence = self.active.get_mut(&seq).expect("a drawn sequence is active");
            let (index, reason) = sequence.say(now, token);
            outputs.push(Output::Token { seq, index, token, logprobs });
            if let Some(reason) = reason {
                outputs.push(sequence.finished(now, reason));
                self.leave(seq, Leaving::Ended);
            } else {
                rows.push(Row { seq, first: pick.position, count: 1, logits: true });
            }
        }
        (outputs, rows)
    }

    /// The sequence's tokens so far for its penalties, each once, with how often it stands in the
    /// answer; empty where nothing is penalised. Complete whenever a step of it has come back: the
    /// token that a step computes on is drawn, and told to [`Self::drawn`], before the step is sent.
    pub fn past(&self, seq: SeqId) -> &[(u32, u32)] {
        self.active.get(&seq).map_or(&[], |sequence| sequence.past.counts())
    }

    /// What the sequence adds to logits.
    pub fn bias(&self, seq: SeqId) -> &[(u32, f32)] {
        self.active.get(&seq).map_or(&[], |sequence| &sequence.admit.bias)
    }

    /// No sequence waits or runs.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn send(&mut self, rows: Vec<Row>, decodes: bool) -> (u64, Vec<SeqId>) {
        let number = self.next_step;
        self.next_step += 1;
        self.in_flight.push_back(InFlight { number, rows, decodes });
        (number, std::mem::take(&mut self.released))
    }

    /// Begins sequences that wait, in their order, while the budget has room for their known tokens
    /// and one more.
    fn activate(&mut self, now: Duration) {
        while let Some(next) = self.waiting.front() {
            let is_alone = self.active.is_empty();
            let has_room = self.active.len() < self.budget.sequences as usize
                && self.claimed() + next.claim() <= self.budget.tokens;
            if !is_alone && !has_room {
                return;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            sequence.start(now, self.next_turn);
            self.next_turn += 1;
            let seq = sequence.admit.seq;
            self.prefilling.push_back(seq);
            self.active.insert(seq, sequence);
        }
    }

    /// Lets the youngest sequences give way until each of the others has room for one position more.
    /// Says whether the room is there: not before what they have in flight came back.
    fn make_room(&mut self) -> bool {
        loop {
            let running = self.active.values().filter(|sequence| sequence.leaving.is_none());
            let claimed: u64 = running.clone().map(Sequence::claim).sum();
            let count = running.clone().count();
            let youngest = running.max_by_key(|sequence| sequence.turn);
            match youngest.map(|sequence| sequence.admit.seq) {
                Some(seq) if claimed > self.budget.tokens && count > 1 => {
                    self.leave(seq, Leaving::Preempted);
                }
                _ => break,
            }
        }
        let is_leaving = self.active.values().any(|sequence| sequence.leaving.is_some());
        !is_leaving || self.claimed() <= self.budget.tokens
    }

    fn claimed(&self) -> u64 {
        self.active.values().map(Sequence::claim).sum()
    }

    /// One group for each rank keeps all of them busy; fewer where fewer sequences decode.
    fn groups_max(&self) -> usize {
        self.world.min(self.decoding())
    }

    fn groups_in_flight(&self) -> usize {
        self.in_flight.iter().filter(|step| step.decodes).count()
    }

    /// Sequences in groups or held for one.
    fn decoding(&self) -> usize {
        let in_groups = self.in_flight.iter().filter(|step| step.decodes);
        self.held.len() + in_groups.map(|step| step.rows.len()).sum::<usize>()
    }

    fn steps_in_flight(&self, seq: SeqId) -> usize {
        self.in_flight.iter().filter(|step| step.rows.iter().any(|row| row.seq == seq)).count()
    }

    fn leave(&mut self, seq: SeqId, why: Leaving) {
        if let Some(sequence) = self.active.get_mut(&seq) {
            sequence.leaving = Some(why);
            self.prefilling.retain(|other| *other != seq);
            self.held.retain(|other| *other != seq);
            self.settle(seq);
        }
    }

    /// A sequence leaves when nothing of it is in flight any more: until then its rows may still
    /// reach a rank, which would open its KV again.
    fn settle(&mut self, seq: SeqId) {
        if self.steps_in_flight(seq) > 0 {
            return;
        }
        let Some(sequence) = self.active.remove(&seq) else { return };
        // What was never sent holds no KV anywhere.
        if sequence.sent > 0 {
            self.freed.push(seq);
            self.released.push(seq);
        }
        if sequence.leaving == Some(Leaving::Preempted) {
            self.waiting.push_front(sequence);
        }
    }
}

#[cfg(test)]
mod tests;
