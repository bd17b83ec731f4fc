//! One file per architecture: each reads like the figure of its paper and holds what differs.

mod llama;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;

use mlx_rs::Array;

use super::cache::Caches;
use super::error::EngineError;
use super::layers::Span;
use super::weights::Weights;
use crate::model::Family;

/// A transformer layer of any family.
pub(super) enum Block {
    Llama(llama::Block),
    Qwen2(qwen2::Block),
    Qwen3(qwen3::Block),
    Qwen3Moe(qwen3_moe::Block),
    Qwen3Next(qwen3_next::Block),
    Qwen35(qwen3_5::Block),
    Qwen35Moe(qwen3_5_moe::Block),
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
            Family::Qwen2 => qwen2::Block::load(weights, layer).map(Self::Qwen2),
            Family::Qwen3 => qwen3::Block::load(weights, layer).map(Self::Qwen3),
            Family::Qwen3Moe => qwen3_moe::Block::load(weights, layer).map(Self::Qwen3Moe),
            Family::Qwen3Next => qwen3_next::Block::load(weights, layer).map(Self::Qwen3Next),
            Family::Qwen35 => qwen3_5::Block::load(weights, layer).map(Self::Qwen35),
            Family::Qwen35Moe => qwen3_5_moe::Block::load(weights, layer).map(Self::Qwen35Moe),
        }
    }

    /// `[tokens, hidden]` to the same.
    pub(super) fn forward(
        &self,
        x: &Array,
        step: &mut StepContext<'_>,
    ) -> Result<Array, EngineError> {
        match self {
            Self::Llama(block) | Self::Qwen2(block) => block.forward(x, step),
            Self::Qwen3(block) => block.forward(x, step),
            Self::Qwen3Moe(block) => block.forward(x, step),
            Self::Qwen3Next(block) | Self::Qwen35(block) | Self::Qwen35Moe(block) => {
                block.forward(x, step)
            }
        }
    }
}

/// `[tokens, heads · dim]` to `[tokens, heads, dim]`.
fn split_heads(x: &Array, heads: i32, dim: i32) -> Result<Array, EngineError> {
    Ok(x.reshape(&[x.dim(0), heads, dim])?)
}
