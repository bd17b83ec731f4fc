//! One file per architecture: each reads like the figure of its paper and holds what differs.

mod llama;
mod qwen3;

use mlx_rs::Array;

use super::cache::Caches;
use super::error::EngineError;
use super::layers::{Heads, Rope, Span};
use super::weights::Weights;
use crate::model::{Family, ModelConfig};

/// A transformer layer of any family.
pub(super) enum Block {
    Llama(llama::Block),
    Qwen3(qwen3::Block),
}

/// What a layer needs to know of the step.
pub(super) struct StepContext<'a> {
    pub(super) spans: &'a [Span],
    pub(super) caches: &'a mut Caches,
    /// The layer's place in this shard, from 0.
    pub(super) layer: usize,
}

impl Block {
    pub(super) fn load(weights: &mut Weights<'_>, layer: u32) -> Result<Self, EngineError> {
        match weights.config().family {
            Family::Llama => llama::Block::load(weights, layer).map(Self::Llama),
            Family::Qwen3 => qwen3::Block::load(weights, layer).map(Self::Qwen3),
        }
    }

    /// `[tokens, hidden]` to the same.
    pub(super) fn forward(
        &self,
        x: &Array,
        step: &mut StepContext<'_>,
    ) -> Result<Array, EngineError> {
        match self {
            Self::Llama(block) => block.forward(x, step),
            Self::Qwen3(block) => block.forward(x, step),
        }
    }
}

fn heads(config: &ModelConfig) -> Heads {
    Heads {
        query: config.heads.cast_signed(),
        kv: config.kv_heads.cast_signed(),
        dim: config.head_dim.cast_signed(),
        rope: Rope::new(config),
    }
}

/// `[tokens, heads · dim]` to `[tokens, heads, dim]`.
fn split_heads(x: &Array, heads: i32, dim: i32) -> Result<Array, EngineError> {
    Ok(x.reshape(&[x.dim(0), heads, dim])?)
}
