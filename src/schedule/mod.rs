//! Which sequence computes what next. Rank 0 drives it; it knows neither engine, socket nor clock
//! (`now` is an argument).
//!
//! One step carries one prefill chunk or one decode position of one sequence. Every active sequence
//! has at most one decode step in flight, and one prompt at a time may have several chunks in
//! flight, so that no rank waits while another computes. Start at [`Scheduler`].

mod past;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use daisy_proto::local::{Admit, FinishReason, Timings};
use daisy_proto::{Logprobs, Row, Sampling, SeqId};

use past::Past;

/// Frames on their way round the ring. Below the credit of an edge (16), so that a send never waits.
const IN_FLIGHT_MAX: usize = 14;

/// Scheduler of rank 0: a pure state machine.
#[derive(Debug)]
pub struct Scheduler {
    world: usize,
    chunk: u32,
    waiting: VecDeque<Sequence>,
    active: BTreeMap<SeqId, Sequence>,
    /// Active sequences whose prompt is not fully sent, oldest first.
    prefilling: VecDeque<SeqId>,
    /// Ended sequences that the other ranks have not been told of yet.
    released: Vec<SeqId>,
    in_flight: VecDeque<InFlight>,
    next_step: u64,
}

/// What rank 0 computes and sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub rows: Vec<Row>,
    pub tokens: Vec<u32>,
}

/// A token to draw from one returned row.
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
struct Sequence {
    admit: Admit,
    /// Prompt tokens that were sent.
    sent: u32,
    generated: u32,
    /// Kept only where penalties ask for it.
    past: Past,
    cancelled: bool,
    admitted_at: Duration,
    started_at: Duration,
    first_token_at: Duration,
}

#[derive(Debug)]
struct InFlight {
    number: u64,
    rows: Vec<Row>,
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
    pub fn new(world: u32, chunk: u32) -> Self {
        Self {
            world: world.max(1) as usize,
            chunk: chunk.max(1),
            waiting: VecDeque::new(),
            active: BTreeMap::new(),
            prefilling: VecDeque::new(),
            released: Vec::new(),
            in_flight: VecDeque::new(),
            next_step: 0,
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
        let penalises = admit.sampling.penalises();
        self.waiting.push_back(Sequence {
            past: if penalises { Past::of_prompt(&admit.prompt) } else { Past::default() },
            admit,
            sent: 0,
            generated: 0,
            cancelled: false,
            admitted_at: now,
            started_at: now,
            first_token_at: now,
        });
        Ok(())
    }

    /// Ends a sequence. What of it is in flight still comes back, and is dropped then.
    pub fn cancel(&mut self, now: Duration, seq: SeqId) -> Option<Output> {
        if let Some(at) = self.waiting.iter().position(|s| s.admit.seq == seq) {
            let sequence = self.waiting.remove(at)?;
            return Some(sequence.finished(now, FinishReason::Cancelled));
        }
        let sequence = self.active.get_mut(&seq)?;
        if sequence.cancelled {
            return None;
        }
        sequence.cancelled = true;
        let output = sequence.finished(now, FinishReason::Cancelled);
        self.prefilling.retain(|s| *s != seq);
        self.end_if_idle(seq);
        Some(output)
    }

    /// The next prefill chunk, if one may be sent now. Send it with [`Self::sent`].
    pub fn next_chunk(&mut self, now: Duration) -> Option<Chunk> {
        self.activate(now);
        let seq = *self.prefilling.front()?;
        // A later prompt waits for the first: chunks of one prompt fill the pipeline by themselves.
        if self.in_flight.len() >= IN_FLIGHT_MAX || self.chunks_in_flight(seq) > self.world {
            return None;
        }
        let sequence = self.active.get_mut(&seq).expect("a prefilling sequence is active");
        let prompt = sequence.prompt_len();
        let count = self.chunk.min(prompt - sequence.sent);
        let first = sequence.sent;
        sequence.sent += count;
        let last = sequence.sent == prompt;
        if last {
            self.prefilling.pop_front();
        }
        let range = first as usize..(first + count) as usize;
        Some(Chunk {
            rows: vec![Row { seq, first, count, logits: last }],
            tokens: sequence.admit.prompt[range].to_vec(),
        })
    }

    /// Records that `rows` go out; gives the step's number and the releases that travel with it.
    pub fn sent(&mut self, rows: Vec<Row>) -> (u64, Vec<SeqId>) {
        let number = self.next_step;
        self.next_step += 1;
        self.in_flight.push_back(InFlight { number, rows });
        (number, std::mem::take(&mut self.released))
    }

    /// Whether the other ranks must be told of ended sequences though no step is due.
    pub fn owes_release(&self) -> bool {
        !self.released.is_empty() && self.in_flight.len() < IN_FLIGHT_MAX
    }

    /// A step came back. For each returned hidden row: what to draw, or none where the row's
    /// sequence was cancelled meanwhile.
    pub fn returned(&mut self, number: u64) -> Result<Vec<Option<Pick>>, ScheduleError> {
        let expected = self.in_flight.front().map(|step| step.number);
        if expected != Some(number) {
            return Err(ScheduleError::OutOfOrder { expected, got: number });
        }
        let step = self.in_flight.pop_front().expect("the front was just read");
        let mut picks = Vec::new();
        for row in step.rows {
            let sequence = self.active.get(&row.seq).expect("a row in flight keeps its sequence");
            let live = !sequence.cancelled;
            if row.logits {
                picks.push(live.then(|| sequence.pick(row.first + row.count)));
            }
            if !live {
                self.end_if_idle(row.seq);
            }
        }
        Ok(picks)
    }

    /// Tokens were drawn. Gives what the node hears and the rows that go on to the next step: the
    /// computed-ahead row of a sequence that ended is left out.
    pub fn drawn(&mut self, now: Duration, drawn: Vec<Drawn>) -> (Vec<Output>, Vec<Row>) {
        let mut outputs = Vec::with_capacity(drawn.len());
        let mut rows = Vec::new();
        for Drawn { pick, token, logprobs } in drawn {
            let sequence = self.active.get_mut(&pick.seq).expect("a drawn sequence is active");
            if sequence.generated == 0 {
                sequence.first_token_at = now;
            }
            let index = sequence.generated;
            sequence.generated += 1;
            if pick.sampling.penalises() {
                sequence.past.add(token);
            }
            outputs.push(Output::Token { seq: pick.seq, index, token, logprobs });
            let reason = if sequence.admit.eos.contains(&token) {
                Some(FinishReason::Stop)
            } else if sequence.generated >= sequence.admit.max_tokens {
                Some(FinishReason::Length)
            } else {
                None
            };
            if let Some(reason) = reason {
                outputs.push(sequence.finished(now, reason));
                self.end(pick.seq);
            } else {
                rows.push(Row { seq: pick.seq, first: pick.position, count: 1, logits: true });
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

    /// One sequence more than ranks keeps every rank busy while one token is being drawn.
    fn active_max(&self) -> usize {
        (self.world + 1).min(IN_FLIGHT_MAX / 2)
    }

    fn activate(&mut self, now: Duration) {
        while self.active.len() < self.active_max() {
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            sequence.started_at = now;
            let seq = sequence.admit.seq;
            self.prefilling.push_back(seq);
            self.active.insert(seq, sequence);
        }
    }

    fn chunks_in_flight(&self, seq: SeqId) -> usize {
        self.in_flight.iter().filter(|step| step.rows.iter().any(|row| row.seq == seq)).count()
    }

    /// A cancelled sequence ends when nothing of it is in flight any more: until then its rows may
    /// still reach a rank, which would open its KV again.
    fn end_if_idle(&mut self, seq: SeqId) {
        if self.chunks_in_flight(seq) == 0 {
            self.end(seq);
        }
    }

    fn end(&mut self, seq: SeqId) {
        // What was never sent holds no KV anywhere.
        if self.active.remove(&seq).is_some_and(|sequence| sequence.sent > 0) {
            self.released.push(seq);
        }
    }
}

impl Sequence {
    fn prompt_len(&self) -> u32 {
        u32::try_from(self.admit.prompt.len()).unwrap_or(u32::MAX)
    }

    fn pick(&self, position: u32) -> Pick {
        Pick {
            seq: self.admit.seq,
            position,
            sampling: self.admit.sampling,
            logprobs: self.admit.logprobs,
            // The last token by max_tokens needs no step after it.
            advance: self.generated + 1 < self.admit.max_tokens,
        }
    }

    fn finished(&self, now: Duration, reason: FinishReason) -> Output {
        let us = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let first = if self.generated == 0 { now } else { self.first_token_at };
        let timings = Timings {
            queue_us: us(self.started_at.saturating_sub(self.admitted_at)),
            prefill_us: us(first.saturating_sub(self.started_at)),
            decode_us: us(now.saturating_sub(first)),
        };
        Output::Finished { seq: self.admit.seq, reason, timings }
    }
}

#[cfg(test)]
mod tests;
