//! One file per architecture: each shows the figure of its paper and holds what differs. What all have
//! in common is [`PreNorm`].

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
use super::layers::{FeedForward, RmsNorm, Span};
use super::weights::Weights;
use crate::model::Family;
use crate::model::spec::layer_prefix;

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

/// A layer that normalises before each of its two parts:
///
/// ```text
/// h   = x + mixer(norm(x))
/// out = h + mlp(norm(h))
/// ```
pub(super) struct PreNorm<M> {
    input_layernorm: RmsNorm,
    mixer: M,
    post_attention_layernorm: RmsNorm,
    /// With experts in the layers that the config names.
    mlp: FeedForward,
}

/// What lets a position see those before it.
pub(super) trait Mixer: Sized {
    /// `path` is where the tensors of the model's layer `layer` begin.
    fn load(weights: &mut Weights<'_>, path: &str, layer: u32) -> Result<Self, EngineError>;

    /// `[tokens, hidden]` to the same.
    fn forward(&self, x: &Array, step: &mut StepContext<'_>) -> Result<Array, EngineError>;
}

impl<M: Mixer> PreNorm<M> {
    fn load(weights: &mut Weights<'_>, layer: u32) -> Result<Self, EngineError> {
        let path = layer_prefix(layer);
        Ok(Self {
            input_layernorm: weights.rms_norm(&format!("{path}input_layernorm"))?,
            mixer: M::load(weights, &path, layer)?,
            post_attention_layernorm: weights
                .rms_norm(&format!("{path}post_attention_layernorm"))?,
            mlp: FeedForward::load(weights, &format!("{path}mlp"), layer)?,
        })
    }

    fn forward(&self, x: &Array, step: &mut StepContext<'_>) -> Result<Array, EngineError> {
        let mixed = self.mixer.forward(&self.input_layernorm.forward(x)?, step)?;
        let h = x.add(mixed)?;
        let out = self.mlp.forward(&self.post_attention_layernorm.forward(&h)?)?;
        Ok(h.add(out)?)
    }
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
            Self::Qwen3(block) | Self::Qwen3Moe(block) => block.forward(x, step),
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
