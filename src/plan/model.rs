//! A model as the planner weighs it: what each layer takes and what a token reads of it.

use daisy_proto::{Dtype, LayerRange};

use crate::model::{ModelConfig, ModelSpec, SpecError, TensorEntry};

/// What a model takes, by part. Bytes are those in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// In order.
    pub layers: Vec<Layer>,
    /// Embedding, final norm and head: all on rank 0.
    pub ends: Ends,
    /// What a rank needs beside weights and KV for each token of a prefill chunk, at its widest.
    pub work_bytes_per_token: u64,
    /// Of one position, on the wire.
    pub hidden_bytes: u64,
    /// How many numbers the weights are, however they are stored.
    pub parameters: u64,
    /// The longest context that the model was made for, in tokens.
    pub context_max: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layer {
    pub weight_bytes: u64,
    /// Of the weights, what one token reads: of experts only those that it goes through.
    pub active_bytes: u64,
    /// Keys and values of one position.
    pub kv_bytes_per_token: u64,
    /// What a sequence of any length keeps here.
    pub state_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ends {
    pub weight_bytes: u64,
    /// The head; of the embedding a token reads one row.
    pub active_bytes: u64,
}

/// What the sequences are that the cluster should hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Longest sequence, in tokens.
    pub context: u32,
    pub sequences: u32,
    /// Longest prefill chunk, in tokens.
    pub chunk: u32,
}

impl Model {
    /// From a config and the headers of all files, for ranks that compute in `dtype`.
    pub fn of<'t>(
        config: &ModelConfig,
        tensors: impl IntoIterator<Item = &'t TensorEntry>,
        dtype: Dtype,
    ) -> Result<Self, SpecError> {
        let spec = ModelSpec::new(config);
        let held =
            |tensor: &'t TensorEntry| (tensor.name.as_str(), ModelSpec::held_bytes(tensor, dtype));
        let parts = spec.bytes_by_part(tensors.into_iter().map(held))?;
        let layers = (0..config.layers).zip(&parts.layers).map(|(layer, weight_bytes)| Layer {
            weight_bytes: *weight_bytes,
            active_bytes: spec.active_bytes(layer, &parts),
            kv_bytes_per_token: spec.kv_bytes_per_token(layer, dtype),
            state_bytes: spec.state_bytes(layer, dtype),
        });
        Ok(Self {
            layers: layers.collect(),
            ends: Ends {
                weight_bytes: parts.embedding + parts.norm + parts.head,
                active_bytes: if config.tied { parts.embedding } else { parts.head },
            },
            work_bytes_per_token: spec.work_bytes_per_token(dtype),
            hidden_bytes: u64::from(config.hidden) * dtype.size_bytes() as u64,
            parameters: spec.parameters(),
            context_max: config.max_positions,
        })
    }

    pub fn weight_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.weight_bytes).sum::<u64>() + self.ends.weight_bytes
    }

    pub fn layer_count(&self) -> u32 {
        u32::try_from(self.layers.len()).unwrap_or(u32::MAX)
    }

    /// Bits that one weight takes on average, in thousandths: quantised ones with their scales.
    pub fn millibits_per_weight(&self) -> u64 {
        let bits = u128::from(self.weight_bytes()) * 8 * 1000;
        u64::try_from(bits / u128::from(self.parameters.max(1))).unwrap_or(u64::MAX)
    }
}

/// What any range of layers takes, by two look-ups: sums over the layers before each boundary.
#[derive(Debug, Clone)]
pub(super) struct Sums {
    before: Vec<Layer>,
    ends: Ends,
}

impl Sums {
    pub(super) fn of(model: &Model) -> Self {
        let mut sum = Layer::default();
        let mut before = vec![sum];
        for layer in &model.layers {
            sum.weight_bytes += layer.weight_bytes;
            sum.active_bytes += layer.active_bytes;
            sum.kv_bytes_per_token += layer.kv_bytes_per_token;
            sum.state_bytes += layer.state_bytes;
            before.push(sum);
        }
        Self { before, ends: model.ends }
    }

    /// The layers of `range` together; as rank 0, with embedding, norm and head.
    pub(super) fn range(&self, range: LayerRange, is_first: bool) -> Layer {
        let (from, to) = (self.before[range.start as usize], self.before[range.end as usize]);
        let ends = if is_first { self.ends } else { Ends::default() };
        Layer {
            weight_bytes: to.weight_bytes - from.weight_bytes + ends.weight_bytes,
            active_bytes: to.active_bytes - from.active_bytes + ends.active_bytes,
            kv_bytes_per_token: to.kv_bytes_per_token - from.kv_bytes_per_token,
            state_bytes: to.state_bytes - from.state_bytes,
        }
    }
}

impl Layer {
    /// Keys, values and state of all sequences.
    pub(super) fn kv_bytes(&self, demand: &Demand) -> u64 {
        let sequence = self.kv_bytes_per_token.saturating_mul(u64::from(demand.context));
        sequence.saturating_add(self.state_bytes).saturating_mul(u64::from(demand.sequences))
    }
}
