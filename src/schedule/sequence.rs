//! One sequence as rank 0 knows it: what was asked, what was computed, what was said.

use std::time::Duration;

use daisy_proto::local::{Admit, FinishReason, Timings};

use super::past::Past;
use super::{Output, Pick};

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) admit: Admit,
    /// Tokens drawn so far. Whoever lost its KV computes them again and draws none anew.
    pub(super) said: Vec<u32>,
    /// Positions that were sent since it last began.
    pub(super) sent: u32,
    /// Kept only where penalties ask for it.
    pub(super) past: Past,
    pub(super) leaving: Option<Leaving>,
    /// Which of the active ones it is, by age: the youngest gives way first.
    pub(super) turn: u64,
    admitted_at: Duration,
    started_at: Option<Duration>,
    first_token_at: Option<Duration>,
}

/// Why nothing more of an active sequence is computed, once nothing of it is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    /// It ended, and was told so.
    Ended,
    /// It makes room, and begins again later.
    Preempted,
}

/// Positions for which the engine takes memory at once.
const KV_BLOCK: u64 = 256;

impl Sequence {
    pub(super) fn new(now: Duration, admit: Admit) -> Self {
        let penalises = admit.sampling.penalises();
        Self {
            past: if penalises { Past::of_prompt(&admit.prompt) } else { Past::default() },
            admit,
            said: Vec::new(),
            sent: 0,
            leaving: None,
            turn: 0,
            admitted_at: now,
            started_at: None,
            first_token_at: None,
        }
    }

    /// Becomes active, for the first time or again.
    pub(super) fn start(&mut self, now: Duration, turn: u64) {
        self.turn = turn;
        self.sent = 0;
        self.leaving = None;
        self.started_at.get_or_insert(now);
    }

    /// Positions whose tokens are known: the prompt, and what was said.
    pub(super) fn known(&self) -> u32 {
        u32::try_from(self.admit.prompt.len() + self.said.len()).unwrap_or(u32::MAX)
    }

    /// Positions that it takes of the budget, with its next token: whole blocks, as the engine's.
    pub(super) fn claim(&self) -> u64 {
        u64::from(self.known()).saturating_add(1).next_multiple_of(KV_BLOCK)
    }

    /// Known tokens of these positions.
    pub(super) fn tokens(&self, first: u32, count: u32) -> Vec<u32> {
        let known = self.admit.prompt.iter().chain(&self.said);
        known.skip(first as usize).take(count as usize).copied().collect()
    }

    pub(super) fn generated(&self) -> u32 {
        u32::try_from(self.said.len()).unwrap_or(u32::MAX)
    }

    /// The draw of the next token.
    pub(super) fn pick(&self) -> Pick {
        Pick {
            seq: self.admit.seq,
            position: self.known(),
            sampling: self.admit.sampling,
            logprobs: self.admit.logprobs,
            // The last token by max_tokens needs no step after it.
            advance: self.generated() + 1 < self.admit.max_tokens,
        }
    }

    /// Takes up a token; gives its index, and why the sequence ends with it, if it does.
    pub(super) fn say(&mut self, now: Duration, token: u32) -> (u32, Option<FinishReason>) {
        self.first_token_at.get_or_insert(now);
        let index = self.generated();
        self.said.push(token);
        if self.admit.sampling.penalises() {
            self.past.add(token);
        }
        let reason = if self.admit.eos.contains(&token) {
            Some(FinishReason::Stop)
        } else if self.generated() >= self.admit.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        };
        (index, reason)
    }

    pub(super) fn finished(&self, now: Duration, reason: FinishReason) -> Output {
        let us = |from: Duration, to: Duration| {
            u64::try_from(to.saturating_sub(from).as_micros()).unwrap_or(u64::MAX)
        };
        let started = self.started_at.unwrap_or(now);
        let first = self.first_token_at.unwrap_or(now);
        let timings = Timings {
            queue_us: us(self.admitted_at, started),
            prefill_us: us(started, first),
            decode_us: us(first, now),
        };
        Output::Finished { seq: self.admit.seq, reason, timings }
    }
}
