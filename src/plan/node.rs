//! A node as the planner sees it: what it can spare now, what bounds that, and how fast it reads.

use std::fmt;

use crate::units::Tenths;

/// What a node has and keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub total_bytes: u64,
    /// What could be taken now without swapping.
    pub available_bytes: u64,
    /// The most that this node may use, as its user said.
    pub limit_bytes: Option<u64>,
    /// What the GPU may hold; none on a machine that computes on its CPU.
    pub gpu_limit_bytes: Option<u64>,
    pub swap_used_bytes: Option<u64>,
    /// What the node keeps to run.
    pub reserve_bytes: u64,
    /// The residency ceiling; none where weights may fill all memory.
    pub ceiling: Option<Ceiling>,
    pub speed: Speed,
}

/// The share of memory beyond which resident weights make the GPU collapse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ceiling {
    pub percent: u8,
}

/// How fast a node computes; none: not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Speed {
    /// At which it reads its memory.
    pub bytes_per_s: Option<u64>,
    /// Of its GPU in half precision.
    pub flop_per_s: Option<u64>,
}

/// What a node can hold now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spare {
    pub bytes: u64,
    /// What that comes from.
    pub bound: Bound,
    /// What weights alone may take; none: no less than everything together.
    pub ceiling: Option<Bound>,
}

/// Which of a node's limits is the tightest, with the figures whose difference it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Available memory less the reserve.
    Free { available: u64, reserve: u64 },
    /// What its user allowed, less the reserve.
    Limit { limit: u64, reserve: u64 },
    /// What the GPU may hold, less its reserve.
    Gpu { limit: u64, reserve: u64 },
    /// The share of all memory that weights may take.
    Ceiling { ceiling: Ceiling, total: u64 },
}

impl Node {
    pub fn spare(&self) -> Spare {
        let reserve = self.reserve_bytes;
        let free = match self.limit_bytes {
            Some(limit) if limit < self.available_bytes => Bound::Limit { limit, reserve },
            _ => Bound::Free { available: self.available_bytes, reserve },
        };
        let gpu = self.gpu_limit_bytes.map(|limit| Bound::Gpu { limit, reserve: GPU_RESERVE });
        let bound = match gpu {
            Some(gpu) if gpu.bytes() < free.bytes() => gpu,
            _ => free,
        };
        let total = self.total_bytes;
        let ceiling = self.ceiling.map(|ceiling| Bound::Ceiling { ceiling, total });
        Spare { bytes: bound.bytes(), bound, ceiling }
    }

    /// What Activity Monitor calls Memory Used.
    pub const fn used_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.available_bytes)
    }
}

impl Ceiling {
    /// That of an Apple GPU with this much memory. No one share fits what was measured: of 24 GiB
    /// 16.6 are good and 17.3 bad, of 36 GiB 26.2 are good.
    pub const fn of_apple(total_bytes: u64) -> Self {
        Self { percent: if total_bytes <= SMALL_BYTES { 70 } else { 73 } }
    }

    pub fn of(self, total_bytes: u64) -> u64 {
        let bytes = u128::from(total_bytes) * u128::from(self.percent) / 100;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl Spare {
    /// The most that weights could take where everything else takes `rest`.
    pub(super) fn for_weights(&self, rest: u64) -> u64 {
        self.bytes.saturating_sub(rest).min(self.weights_max())
    }

    pub(super) fn weights_max(&self) -> u64 {
        self.ceiling.map_or(u64::MAX, |ceiling| ceiling.bytes())
    }
}

impl Bound {
    pub fn bytes(&self) -> u64 {
        match *self {
            Self::Free { available: of, reserve }
            | Self::Limit { limit: of, reserve }
            | Self::Gpu { limit: of, reserve } => of.saturating_sub(reserve),
            Self::Ceiling { ceiling, total } => ceiling.of(total),
        }
    }

    /// As shown: the difference of the figures that stand beside it.
    pub(super) fn tenths(&self) -> Tenths {
        match *self {
            Self::Free { available: of, reserve }
            | Self::Limit { limit: of, reserve }
            | Self::Gpu { limit: of, reserve } => Tenths::of(of) - Tenths::of(reserve),
            Self::Ceiling { .. } => Tenths::of(self.bytes()),
        }
    }
}

/// In GiB, as in the tables of a plan.
impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, of, reserve) = match *self {
            Self::Free { available, reserve } => ("free", available, reserve),
            Self::Limit { limit, reserve } => ("memory limit", limit, reserve),
            Self::Gpu { limit, reserve } => ("GPU limit", limit, reserve),
            Self::Ceiling { ceiling: Ceiling { percent }, total } => {
                return write!(f, "residency ceiling {percent} % of {}", Tenths::of(total));
            }
        };
        write!(f, "{what} {} − {} reserve", Tenths::of(of), Tenths::of(reserve))
    }
}

/// What a node keeps to run where nobody said otherwise.
pub const RESERVE_USUAL: u64 = 2 << 30;
/// Of the GPU's limit, for what MLX and the system hold beside the model.
const GPU_RESERVE: u64 = 3 << 28;
/// Up to this much memory the ceiling is the lower one.
const SMALL_BYTES: u64 = 24 << 30;
