//! What the driver must know of a checkpoint before it plans: configuration, bytes, text, digest.

use std::path::Path;
use std::sync::Arc;

use daisy_proto::local::{Refusal, RefusalKind};

use crate::model::{ModelConfig, ModelSpec};
use crate::plan::Weights;
use crate::store::Checkpoint;
use crate::text::TextModel;

/// A checkpoint that can be served.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) config: ModelConfig,
    pub(crate) weights: Weights,
    pub(crate) text: Arc<TextModel>,
    pub(crate) digest: [u8; 32],
}

impl Model {
    /// Reads everything but the weights; blocks on the disk.
    pub(crate) fn open(dir: &Path) -> Result<Self, Refusal> {
        let checkpoint = Checkpoint::open(dir).map_err(|error| refusal(&error))?;
        let config = ModelConfig::parse(&checkpoint.config_json)
            .map_err(|error| refusal(&format!("{}: {error}", dir.join("config.json").display())))?;
        let sizes = checkpoint.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.bytes));
        let bytes = ModelSpec::new(&config)
            .bytes_by_part(sizes)
            .map_err(|error| refusal(&format!("{}: {error}", dir.display())))?;
        let text = TextModel::open(dir).map_err(|error| refusal(&error))?;
        Ok(Self {
            name: checkpoint.name.clone(),
            weights: Weights {
                ends: bytes.embedding + bytes.norm + bytes.head,
                layers: bytes.layers,
            },
            config,
            text: Arc::new(text),
            digest: checkpoint.digest(),
        })
    }

    /// The context to serve: what was asked for, at most the model's own.
    pub(crate) fn context(&self, wanted: Option<u32>) -> Result<u32, Refusal> {
        let own = self.config.max_positions;
        match wanted {
            None => Ok(own.min(CONTEXT_DEFAULT)),
            Some(wanted) if wanted > own => Err(Refusal {
                message: format!("--context {wanted} is more than the model's own {own} tokens"),
                hints: vec![format!("--context {own} is the most")],
                kind: RefusalKind::Usage,
            }),
            Some(wanted) => Ok(wanted),
        }
    }
}

fn refusal(error: &impl ToString) -> Refusal {
    Refusal { message: error.to_string(), hints: Vec::new(), kind: RefusalKind::CannotBeDone }
}

/// Without a memory plan, a context that small machines can hold.
const CONTEXT_DEFAULT: u32 = 8192;
