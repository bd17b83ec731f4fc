//! What the driver must know of a checkpoint before it plans: configuration, bytes, text, digest.

use std::path::Path;
use std::sync::Arc;

use daisy_proto::local::{Refusal, RefusalKind};
use daisy_proto::{Dtype, LayerRange, Rank, Shard};

use crate::model::{ModelConfig, ModelSpec, TensorEntry, compute_dtype};
use crate::plan;
use crate::store::Checkpoint;
use crate::text::TextModel;

/// A checkpoint that can be served.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) config: ModelConfig,
    tensors: Vec<TensorEntry>,
    pub(crate) text: Arc<TextModel>,
    pub(crate) digest: [u8; 32],
}

impl Model {
    /// Reads everything but the weights; blocks on the disk.
    pub(crate) fn open(dir: &Path) -> Result<Self, Refusal> {
        let checkpoint = Checkpoint::open(dir).map_err(|error| refusal(&error))?;
        let config = ModelConfig::parse(&checkpoint.config_json)
            .map_err(|error| refusal(&format!("{}: {error}", dir.join("config.json").display())))?;
        let text = TextModel::open(dir).map_err(|error| refusal(&error))?;
        let model = Self {
            name: checkpoint.name.clone(),
            config,
            text: Arc::new(text),
            digest: checkpoint.digest(),
            tensors: checkpoint.tensors,
        };
        // Names that the model has no place for are told before any other node is asked.
        model.costs(Dtype::F32).map_err(|Refusal { message, hints, kind }| {
            let message = format!("{}: {message}", dir.display());
            Refusal { message, hints, kind }
        })?;
        Ok(model)
    }

    /// What the model takes on ranks that compute in `dtype`.
    pub(crate) fn costs(&self, dtype: Dtype) -> Result<plan::Model, Refusal> {
        plan::Model::of(&self.config, &self.tensors, dtype).map_err(|error| refusal(&error))
    }

    /// The type that ranks on GPUs take: what the weights are stored in, which `config.json` may not know.
    pub(crate) fn gpu_dtype(&self) -> Dtype {
        let whole = Shard::of(Rank(0), LayerRange::new(0, self.config.layers));
        let expected = ModelSpec::new(&self.config).shard_tensors(&whole, &self.tensors);
        // Of a checkpoint that no rank can load, the plan is not followed by a load.
        compute_dtype(true, &self.config, &expected.unwrap_or_default())
    }

    /// Bytes of one position on the wire, at most: an element has four there, or two.
    pub(crate) const fn hidden_bytes(&self) -> u64 {
        self.config.hidden as u64 * 4
    }
}

fn refusal(error: &impl ToString) -> Refusal {
    Refusal { message: error.to_string(), hints: Vec::new(), kind: RefusalKind::CannotBeDone }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_plan_for_gpus_weighs_the_type_that_the_files_hold() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/llama-f32");
        let dir = tempfile::tempdir().expect("a folder");
        for entry in fs::read_dir(&tiny).expect("a checkpoint").flatten() {
            fs::copy(entry.path(), dir.path().join(entry.file_name())).expect("copied");
        }
        // As a conversion leaves it.
        let path = dir.path().join("config.json");
        let config = fs::read_to_string(&path).expect("a config");
        assert!(config.contains("\"float32\""), "{config}");
        fs::write(&path, config.replace("\"float32\"", "\"bfloat16\"")).expect("written");
        let model = Model::open(dir.path()).expect("a model");
        assert_eq!(model.config.dtype, Some(Dtype::Bf16));
        assert_eq!(model.gpu_dtype(), Dtype::F32);
        let weights = |dtype| model.costs(dtype).expect("weighed").weight_bytes();
        assert_eq!(weights(model.gpu_dtype()), 2 * weights(Dtype::Bf16));
    }
}
