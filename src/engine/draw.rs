//! One token to draw, and what of it a device could not compute.

use daisy_proto::{Row, Sampling, SeqId};

use super::error::EngineError;

/// One token to draw. Beside the logits it holds all that the draw depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw<'a> {
    pub seq: SeqId,
    /// The position that the drawn token takes.
    pub position: u32,
    pub sampling: Sampling,
    /// The sequence's tokens so far, each id once, with how often it stands in the answer: 0 for one
    /// that is in the prompt alone. Read only where the sampling penalises.
    pub past: &'a [(u32, u32)],
    /// Token ids, each once, with what is added to their logits.
    pub bias: &'a [(u32, f32)],
    /// Whether log probabilities are wanted too, and of how many of the likeliest tokens.
    pub logprobs: Option<u32>,
    /// Whether the sequence goes on: then the token runs through this rank's layers at once.
    pub advance: bool,
}

impl<'a> Draw<'a> {
    /// A draw by `sampling` alone, of a sequence that goes on.
    pub const fn new(seq: SeqId, position: u32, sampling: Sampling) -> Self {
        Self { seq, position, sampling, past: &[], bias: &[], logprobs: None, advance: true }
    }

    /// The tokens whose logits the penalties change.
    pub(super) fn penalised(&self) -> &'a [(u32, u32)] {
        if self.sampling.penalises() { self.past } else { &[] }
    }

    pub(super) fn row(&self) -> Row {
        Row { seq: self.seq, first: self.position, count: 1, logits: true }
    }

    pub(super) fn check(&self, vocab: u32) -> Result<(), EngineError> {
        let Sampling {
            temperature,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            ..
        } = self.sampling;
        let finite = |value: f32| value.is_finite();
        for (field, value, is_right, expected) in [
            ("temperature", temperature, finite(temperature) && temperature >= 0.0, "0 or more"),
            ("top_p", top_p, (0.0..=1.0).contains(&top_p), "from 0 to 1"),
            ("min_p", min_p, (0.0..=1.0).contains(&min_p), "from 0 to 1"),
            (
                "repetition_penalty",
                repetition_penalty,
                finite(repetition_penalty) && repetition_penalty > 0.0,
                "above 0",
            ),
            ("presence_penalty", presence_penalty, finite(presence_penalty), "a number"),
            ("frequency_penalty", frequency_penalty, finite(frequency_penalty), "a number"),
        ] {
            if !is_right {
                return Err(EngineError::Sampling { seq: self.seq, field, expected, got: value });
            }
        }
        if let Some((_, got)) = self.bias.iter().find(|(_, bias)| !bias.is_finite()) {
            let (field, expected, got) = ("bias", "a number", *got);
            return Err(EngineError::Sampling { seq: self.seq, field, expected, got });
        }
        let mut tokens =
            self.bias.iter().map(|(token, _)| *token).chain(self.past.iter().map(|past| past.0));
        match tokens.find(|token| *token >= vocab) {
            Some(token) => Err(EngineError::Token { token, vocab }),
            None => Ok(()),
        }
    }
}
