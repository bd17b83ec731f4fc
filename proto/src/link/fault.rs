//! What can be wrong on an edge: with a step, with a call of this side, with what the other side
//! sent. [`LinkFault::reason`] is what the other side is told about it.

use super::MAX_ROWS;
use crate::frame::FrameError;
use crate::hidden::HiddenSizeError;
use crate::{CloseReason, Hidden, PROTOCOL_VERSION, PipelineId, Rank, Step};

/// Why [`Link::send_step`](super::Link::send_step) refused. All but `NotOpen` and `NoCredit` are faults of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    #[error("the edge is not open")]
    NotOpen,
    #[error("as many steps are on the way as the edge allows")]
    NoCredit,
    #[error("the receiving side of an edge sends no steps")]
    NotSender,
    #[error("the step is of pipeline {got}, the edge of {expected}")]
    WrongPipeline { got: PipelineId, expected: PipelineId },
    #[error(transparent)]
    Step(#[from] StepFault),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// What is wrong with a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepFault {
    #[error("step {got} came where step {expected} was due")]
    Number { got: u64, expected: u64 },
    #[error("step of {rows} rows and {releases} releases: at most {MAX_ROWS} of each")]
    TooManyRows { rows: usize, releases: usize },
    #[error("row {index} of the step has {count} positions from {first}")]
    Row { index: usize, first: u32, count: u32 },
    #[error("step carries {got} rows of hidden state, its rows ask for {expected}")]
    Tokens { got: u32, expected: u64 },
    #[error(transparent)]
    Payload(#[from] HiddenSizeError),
}

/// How the other side broke the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkFault {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Step(#[from] StepFault),
    #[error("`{0}` came where it has no place")]
    Unexpected(&'static str),
    #[error("`{0}` came with a payload")]
    Payload(&'static str),
    #[error("more steps are on the way than the {credit} that the edge allows")]
    Overrun { credit: u32 },
    #[error("heartbeat counts {got} steps, between {least} and {most} are possible")]
    Count { got: u64, least: u64, most: u64 },
    #[error("hello speaks protocol {got}, this side {PROTOCOL_VERSION}")]
    Version { got: u32 },
    #[error("hello is for pipeline {got}, the edge of {expected}")]
    Pipeline { got: PipelineId, expected: PipelineId },
    #[error("hello is for the edge {from} → {to}")]
    Ranks { from: Rank, to: Rank },
}

impl LinkFault {
    /// What the other side is told.
    #[must_use]
    pub const fn reason(&self) -> CloseReason {
        match self {
            Self::Version { .. } => CloseReason::ProtocolVersion,
            Self::Pipeline { .. } => CloseReason::WrongPipeline,
            Self::Ranks { .. } => CloseReason::WrongRank,
            _ => CloseReason::BadFrame,
        }
    }
}

/// Whether `step` may be number `expected` on an edge that carries what `carries` counts.
pub(super) fn check_step(
    step: &Step,
    payload: &bytes::Bytes,
    expected: u64,
    carries: Carries,
) -> Result<(), StepFault> {
    if step.number != expected {
        return Err(StepFault::Number { got: step.number, expected });
    }
    let (rows, releases) = (step.rows.len(), step.release.len());
    if rows > MAX_ROWS || releases > MAX_ROWS {
        return Err(StepFault::TooManyRows { rows, releases });
    }
    for (index, row) in step.rows.iter().enumerate() {
        if row.count == 0 || row.first.checked_add(row.count).is_none() {
            return Err(StepFault::Row { index, first: row.first, count: row.count });
        }
    }
    let tokens = match carries {
        Carries::EveryPosition => step.positions(),
        Carries::Wanted => u64::from(step.wanted()),
    };
    if u64::from(step.tokens) != tokens {
        return Err(StepFault::Tokens { got: step.tokens, expected: tokens });
    }
    Hidden::new(step.dtype, step.tokens, step.width, payload.clone())?;
    Ok(())
}

/// Which rows of hidden state an edge carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carries {
    /// On the way out: the next rank needs all.
    EveryPosition,
    /// On the way back to rank 0: the head needs the rows with `logits`.
    Wanted,
}
