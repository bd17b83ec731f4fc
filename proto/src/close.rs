//! Why a connection or an edge was closed: one table of name, number and sentence.
//!
//! The number is the application error code of QUIC's close, and what [`crate::link`] writes into a
//! goodbye. A number that this version does not know is kept as it is, so that logs show it. A close
//! knows no names: whoever reports one adds which node it came from.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! close_reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $sentence:literal;)+) => {
        /// Why a connection or an edge was closed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(from = "u32", into = "u32")]
        pub enum CloseReason {
            $($(#[$doc])* $name,)+
            /// A number of a later version.
            Unknown(u32),
        }

        impl CloseReason {
            /// Every reason that has a name, in the order of the numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            #[must_use]
            pub const fn from_code(code: u32) -> Self {
                match code {
                    $($code => Self::$name,)+
                    other => Self::Unknown(other),
                }
            }

            #[must_use]
            pub const fn code(self) -> u32 {
                match self {
                    $(Self::$name => $code,)+
                    Self::Unknown(code) => code,
                }
            }

            /// What it means, for logs and errors.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$name => $sentence,)+
                    Self::Unknown(_) => "closed for a reason that this version does not know",
                }
            }
        }
    };
}

close_reasons! {
    /// What a QUIC endpoint sends when its owner drops a connection: never sent on purpose.
    Unstated = 0, "closed without a reason, as a process does that ends early";
    Done = 1, "the pipeline was unloaded";
    Draining = 2, "the node is shutting down";
    ProtocolVersion = 3, "the two ends speak different protocol versions";
    NotTrusted = 4, "the key is not trusted here";
    WrongPipeline = 5, "the edge belongs to another pipeline";
    WrongRank = 6, "the edge joins other ranks";
    BadFrame = 7, "a frame broke the protocol";
    StepDeadline = 8, "a step did not come back within its deadline";
    Silent = 9, "nothing was heard for too long";
    /// Another edge of the rank failed, and this one is of no use without it.
    NeighbourLost = 10, "the rank lost its other neighbour";
    EngineFailed = 11, "the engine failed";
    Busy = 12, "too many connections";
    Internal = 13, "a bug: the log of that node says more";
}

impl CloseReason {
    /// Whether somebody wanted this end: nothing is wrong then.
    #[must_use]
    pub const fn is_orderly(self) -> bool {
        matches!(self, Self::Done | Self::Draining)
    }
}

impl From<u32> for CloseReason {
    fn from(code: u32) -> Self {
        Self::from_code(code)
    }
}

impl From<CloseReason> for u32 {
    fn from(reason: CloseReason) -> Self {
        reason.code()
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(code) => write!(f, "{} (code {code})", self.sentence()),
            known => f.write_str(known.sentence()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_one_to_one() {
        for (index, reason) in CloseReason::ALL.iter().enumerate() {
            assert_eq!(reason.code() as usize, index, "{reason:?}: numbers have no gap");
            assert_eq!(CloseReason::from_code(reason.code()), *reason);
        }
    }

    #[test]
    fn an_unknown_number_is_kept_and_shown() {
        let reason = CloseReason::from_code(4711);
        assert_eq!(reason, CloseReason::Unknown(4711));
        assert_eq!(reason.code(), 4711);
        assert!(reason.to_string().contains("4711"));
    }

    #[test]
    fn a_dropped_connection_is_not_an_orderly_end() {
        assert!(!CloseReason::from_code(0).is_orderly());
        assert!(CloseReason::Done.is_orderly());
    }
}
