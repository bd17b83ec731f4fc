//! What a model takes beyond its files: what a token reads, what a sequence keeps, and what a rank
//! needs to work.

use daisy_proto::Dtype;

use super::config::ModelConfig;
use super::headers::{StoredDtype, TensorEntry};
use super::modules::ModuleKind;
use super::spec::{Expected, ModelSpec, Part, PartBytes};

impl ModelSpec<'_> {
    /// Bytes of a layer's weights that one token reads: all but the experts that it does not go
    /// through.
    pub fn active_bytes(self, layer: u32, parts: &PartBytes) -> u64 {
        let of = |sums: &[u64]| sums.get(layer as usize).copied().unwrap_or(0);
        let (all, experts) = (of(&parts.layers), of(&parts.experts));
        let Some(mixture) = self.config.experts_of(layer) else { return all };
        let read = u128::from(experts) * u128::from(mixture.per_token) / u128::from(mixture.count);
        all - experts + u64::try_from(read).unwrap_or(experts)
    }

    /// Bytes of keys and values that one position takes in layer `layer`, with `dtype` as the
    /// compute type; a gated delta net keeps none.
    pub fn kv_bytes_per_token(self, layer: u32, dtype: Dtype) -> u64 {
        if self.config.delta_of(layer).is_some() {
            return 0;
        }
        2 * u64::from(self.config.kv_width()) * dtype.size_bytes() as u64
    }

    /// Bytes of state that a sequence of any length has in layer `layer`: what the convolution still
    /// sees, in the compute type, and the net's matrices, in f32.
    pub fn state_bytes(self, layer: u32, dtype: Dtype) -> u64 {
        let Some(delta) = self.config.delta_of(layer) else { return 0 };
        let seen = u64::from(delta.kernel - 1) * u64::from(delta.conv_width());
        seen * dtype.size_bytes() as u64 + delta.state_size() * Dtype::F32.size_bytes() as u64
    }

    /// Bytes that a tensor takes in memory: floats are held in the compute type.
    pub fn held_bytes(tensor: &TensorEntry, dtype: Dtype) -> u64 {
        if !tensor.dtype.is_float() {
            return tensor.bytes;
        }
        let numbers = tensor.shape.iter().copied().fold(1, u64::saturating_mul);
        numbers.saturating_mul(dtype.size_bytes() as u64)
    }

    /// How many numbers the weights are, however they are stored.
    pub fn parameters(self) -> u64 {
        let layers = (0..self.config.layers).map(Part::Layer);
        let parts = [Part::Embedding, Part::Norm, Part::Head].into_iter().chain(layers);
        let modules = parts.flat_map(|part| self.modules(part));
        modules.map(|module| numbers(module.kind)).fold(0, u64::saturating_add)
    }

    /// Bytes that a rank needs beside weights and KV for each token of a prefill chunk, in its
    /// widest layer: the hidden state with what is added to it, and all that a layer makes of it.
    pub fn work_bytes_per_token(self, dtype: Dtype) -> u64 {
        let width = |layer| {
            let config = self.config;
            let mixer = match config.delta_of(layer) {
                // In and out of the convolution; gates and values of the net.
                Some(delta) => {
                    2 * u64::from(delta.conv_width()) + 3 * u64::from(delta.value_width())
                }
                None => 3 * u64::from(config.query_width()) + 2 * u64::from(config.kv_width()),
            };
            mixer.max(feed_forward_width(config, layer))
        };
        let widest = (0..self.config.layers).map(width).max().unwrap_or(0);
        let hidden = 4 * u64::from(self.config.hidden);
        (hidden + widest) * dtype.size_bytes() as u64
    }
}

/// The type that a rank computes in where nobody says otherwise, from the tensors of its shard or of the
/// whole model. On a CPU, half types are emulated: f32 is more than ten times as fast there. On a GPU, the type
/// that the checkpoint's matrices (or their scales) are stored in: what `config.json` says is often
/// left over from before a conversion. Norms may be stored wider, and where they stand in a shard
/// depends on the cut, so they have no say.
pub fn compute_dtype(on_gpu: bool, config: &ModelConfig, expected: &[Expected]) -> Dtype {
    if !on_gpu {
        return Dtype::F32;
    }
    let matrices = expected.iter().filter(|tensor| tensor.shape.len() == 2);
    // Those of layers, because every shard has some: an embedding may be stored otherwise.
    let mut layers = matrices.filter(|tensor| matches!(tensor.part, Part::Layer(_)));
    let stored = layers.find_map(|tensor| match tensor.dtype {
        StoredDtype::F32 => Some(Dtype::F32),
        StoredDtype::F16 => Some(Dtype::F16),
        StoredDtype::Bf16 => Some(Dtype::Bf16),
        _ => None,
    });
    stored.or(config.dtype).unwrap_or(Dtype::Bf16)
}

/// Gate, up and their product of one token; of a mixture, also what each expert takes and gives.
fn feed_forward_width(config: &ModelConfig, layer: u32) -> u64 {
    let Some(experts) = config.experts_of(layer) else {
        return 3 * u64::from(config.intermediate);
    };
    let each = 3 * u64::from(experts.width) + 2 * u64::from(config.hidden);
    let shared = 3 * u64::from(experts.shared_width.unwrap_or(0));
    u64::from(experts.per_token) * each + shared
}

fn numbers(kind: ModuleKind) -> u64 {
    match kind {
        ModuleKind::Matrix { rows, columns, bias } => {
            u64::from(rows) * (u64::from(columns) + u64::from(bias))
        }
        ModuleKind::Vector { size } | ModuleKind::Bare { size } => u64::from(size),
        ModuleKind::Convolution { channels, kernel } => u64::from(channels) * u64::from(kernel),
        ModuleKind::Experts { count, hidden, width } => {
            let matrix = u64::from(hidden) * u64::from(width);
            matrix.saturating_mul(3 * u64::from(count))
        }
    }
}
