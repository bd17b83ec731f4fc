//! Quantities as users read them, one `Display` each.

use std::fmt;

/// A size in memory or on disk; shown in GiB with one decimal, smaller ones in MiB or KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    #[expect(clippy::cast_precision_loss, reason = "a display of one decimal")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..KIB => write!(f, "{} B", self.0),
            KIB..MIB => write!(f, "{:.1} KiB", bytes / KIB as f64),
            MIB..HALF_GIB => write!(f, "{:.1} MiB", bytes / MIB as f64),
            _ => write!(f, "{:.1} GiB", bytes / GIB as f64),
        }
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const HALF_GIB: u64 = 1 << 29;
const GIB: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_as_users_read_them() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (92_900_000, "88.6 MiB"),
            (GIB, "1.0 GiB"),
            (45_956_000_000, "42.8 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), shown);
        }
    }
}
