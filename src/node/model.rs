//! What the driver must know of a checkpoint before it plans: configuration, bytes, text, digest.

use std::path::Path;
use std::sync::Arc;

use daisy_proto::Dtype;
use daisy_proto::local::{Refusal, RefusalKind};

use crate::model::{ModelConfig, TensorEntry};
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

    /// Bytes of one position on the wire, at most: an element has four there, or two.
    pub(crate) const fn hidden_bytes(&self) -> u64 {
        self.config.hidden as u64 * 4
    }
}

fn refusal(error: &impl ToString) -> Refusal {
    Refusal { message: error.to_string(), hints: Vec::new(), kind: RefusalKind::CannotBeDone }
}
