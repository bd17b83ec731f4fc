//! How likely a drawn token was, and which others were likely: log-softmax of the model's own
//! logits, on the device, before bias, penalties and temperature.

use daisy_proto::Logprobs;
use mlx_rs::{Array, Dtype, ops};

use super::error::EngineError;
use super::ffi;

/// Log probabilities of one row, as they are computed.
pub(super) struct Computed {
    /// `[1]`, f32.
    drawn: Array,
    /// Ids and values of the likeliest tokens, `[count]`; none where none were asked for.
    top: Option<(Array, Array)>,
}

impl Computed {
    /// Of `logits`, `[vocab]`, with the drawn `token`, `[1]`.
    pub(super) fn new(logits: &Array, token: &Array, count: u32) -> Result<Self, EngineError> {
        let logits = logits.as_dtype(Dtype::Float32)?;
        let all = logits.subtract(logits.logsumexp(true)?)?;
        let drawn = all.take_axis(token, 0)?;
        let vocab = logits.dim(0);
        let count = i32::try_from(count).unwrap_or(i32::MAX).min(vocab);
        if count == 0 {
            return Ok(Self { drawn, top: None });
        }
        // Only the few that are wanted are sorted.
        let partition = ops::argpartition_axis(all.negative()?, count - 1, 0)?;
        let ids = ffi::slice(&partition, &[0], &[count])?;
        let order = ops::argsort_axis(all.take_axis(&ids, 0)?.negative()?, 0)?;
        let ids = ids.take_axis(order, 0)?;
        let values = all.take_axis(&ids, 0)?;
        Ok(Self { drawn, top: Some((ids, values)) })
    }

    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let top = self.top.iter().flat_map(|(ids, values)| [ids, values]);
        std::iter::once(&self.drawn).chain(top)
    }

    /// Waits for the values and copies them out.
    pub(super) fn read(&self) -> Result<Logprobs, EngineError> {
        let mlx = |error: mlx_rs::error::AsSliceError| EngineError::Mlx(error.to_string());
        let drawn = self.drawn.try_as_slice::<f32>().map_err(mlx)?;
        let drawn = *drawn.first().ok_or(EngineError::Internal("a token without a probability"))?;
        let top = match &self.top {
            None => Vec::new(),
            Some((ids, values)) => {
                let ids = ids.try_as_slice::<u32>().map_err(mlx)?.iter().copied();
                ids.zip(values.try_as_slice::<f32>().map_err(mlx)?.iter().copied()).collect()
            }
        };
        Ok(Logprobs { drawn, top })
    }
}
