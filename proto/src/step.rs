//! One step: one pass of one batch through all ranks. A step is one frame on each edge.

use serde::{Deserialize, Serialize};

use crate::{Dtype, PipelineId, SeqId};

/// Rows of one sequence within a step: `count` positions from `first`.
///
/// A rank whose cache of the sequence is longer than `first` trims it to `first` before the step:
/// so a row that was computed ahead and then not wanted needs no message of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub seq: SeqId,
    /// Position of the first token, from 0.
    pub first: u32,
    pub count: u32,
    /// Whether the last position's hidden state is wanted back at rank 0 for the head.
    pub logits: bool,
}

/// Header of a step's frame. The hidden state follows it as raw payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub pipeline: PipelineId,
    /// Counts up from 0 within a pipeline.
    pub number: u64,
    pub rows: Vec<Row>,
    /// Sequences that ended: their KV is freed before the rows are computed.
    pub release: Vec<SeqId>,
    pub dtype: Dtype,
    /// Rows of the payload. On the way out: the sum of the counts. On the way back to rank 0: the
    /// number of rows with `logits`.
    pub tokens: u32,
    /// Elements per row.
    pub width: u32,
}

impl Step {
    /// Positions that this step computes.
    #[must_use]
    pub fn positions(&self) -> u64 {
        self.rows.iter().map(|row| u64::from(row.count)).sum()
    }

    /// Positions whose hidden state returns to rank 0.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        // A frame header is bounded (MAX_HEADER_BYTES), so the count fits.
        u32::try_from(self.rows.iter().filter(|row| row.logits).count()).unwrap_or(u32::MAX)
    }
}
