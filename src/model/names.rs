//! How checkpoints name and shape the tensors of a model: as MLX's converters write them, or as
//! the original did.
//!
//! The rest of the house knows MLX's names without the prefix that a model with a vision tower has.
//! [`canonical`] turns any name into that; [`Layout`] and [`ExpertForm`] say in which form a tensor
//! is stored. What is not of the language model is passed over knowingly: vision towers, and the
//! heads that predict several tokens.

use std::borrow::Cow;

use super::config::ModelConfig;
use super::family::Family;
use super::headers::TensorEntry;

/// Who wrote a hybrid's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Mlx,
    /// The norms' weights are stored less the 1 that they are multiplied with.
    Original,
}

/// How the experts of a layer are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertForm {
    /// `switch_mlp.up_proj`: one stack of matrices for each projection.
    Stacked,
    /// `experts.3.up_proj`: a matrix for each projection of each expert.
    Separate,
    /// `experts.gate_up_proj` and `experts.down_proj`: two stacks, without a suffix.
    Fused,
}

impl Layout {
    /// What the tensors of a checkpoint's files tell, as the reference implementation judges it:
    /// by the shape of a convolution's weight. Files without one are judged by their names. None:
    /// neither tells.
    pub fn of<'t>(
        config: &ModelConfig,
        stored: impl IntoIterator<Item = &'t TensorEntry>,
    ) -> Option<Self> {
        if config.delta.is_none() {
            return Some(Self::Mlx);
        }
        let mut by_name = None;
        for TensorEntry { name, shape, .. } in stored {
            if name.ends_with(CONVOLUTION) {
                let channels_last = shape.last() == Some(&1);
                return Some(if channels_last { Self::Mlx } else { Self::Original });
            }
            if name.starts_with(ORIGINAL) || name.contains(".mlp.experts.") {
                by_name = Some(Self::Original);
            } else if name.starts_with(MLX) || name.contains(".mlp.switch_mlp.") {
                by_name = by_name.or(Some(Self::Mlx));
            }
        }
        by_name
    }
}

impl ExpertForm {
    /// The form of the experts whose stacks would lie at `path`, by which tensors there are.
    pub fn of(path: &str, exists: impl Fn(&str) -> bool) -> Self {
        if exists(&format!("{}.0.gate_proj.weight", experts(path))) {
            Self::Separate
        } else if exists(&format!("{}.gate_up_proj", experts(path))) {
            Self::Fused
        } else {
            Self::Stacked
        }
    }
}

/// Where the original keeps the experts that MLX keeps at `path`.
pub fn experts(path: &str) -> String {
    path.replace("switch_mlp", "experts")
}

/// The name within the language model; none: knowingly passed over.
pub fn canonical(family: Family, name: &str) -> Option<Cow<'_, str>> {
    if !family.is_hybrid() {
        return Some(Cow::Borrowed(name));
    }
    if name.starts_with("mtp.") || name.contains(".mtp.") {
        return None;
    }
    if !family.sees() {
        return Some(Cow::Borrowed(name));
    }
    if VISION.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    match (name.strip_prefix(ORIGINAL), name.strip_prefix(MLX)) {
        (Some(rest), _) => Some(Cow::Owned(format!("model.{rest}"))),
        (None, Some(rest)) => Some(Cow::Borrowed(rest)),
        (None, None) => Some(Cow::Borrowed(name)),
    }
}

const CONVOLUTION: &str = ".linear_attn.conv1d.weight";
const ORIGINAL: &str = "model.language_model.";
const MLX: &str = "language_model.";
const VISION: &[&str] = &["vision_tower.", "model.visual.", "model.vision_tower.", "visual."];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_those_of_the_language_model() {
        let up = "model.layers.0.mlp.up_proj.weight";
        for (family, name, expected) in [
            (Family::Qwen35, "language_model.model.layers.0.mlp.up_proj.weight", Some(up)),
            (Family::Qwen35Moe, "model.language_model.layers.0.mlp.up_proj.weight", Some(up)),
            (Family::Qwen35, up, Some(up)),
            (Family::Qwen35, "language_model.lm_head.weight", Some("lm_head.weight")),
            (Family::Qwen35, "lm_head.weight", Some("lm_head.weight")),
            (Family::Qwen35, "model.visual.blocks.0.norm1.weight", None),
            (Family::Qwen35, "vision_tower.blocks.0.norm1.weight", None),
            (Family::Qwen35, "language_model.mtp.layers.0.mlp.up_proj.weight", None),
            (Family::Qwen3Next, "mtp.fc.weight", None),
            // Of other families nothing is passed over.
            (Family::Qwen3Next, "model.visual.x", Some("model.visual.x")),
            (Family::Qwen3, "mtp.fc.weight", Some("mtp.fc.weight")),
        ] {
            assert_eq!(canonical(family, name).as_deref(), expected, "{family:?} {name}");
        }
    }
}
