//! How fast chips read memory and compute, by the names that their systems give them.
//!
//! Apple's published figures: memory bandwidth in GB/s, and what the GPU computes in 10⁹ operations
//! of single precision a second. Of chips sold with fewer cores the larger one is taken, since the
//! name does not tell them apart.

use super::node::Speed;

/// What is known of a chip; nothing, if its name is not in the table.
pub fn speed(chip: &str) -> Speed {
    let known = CHIPS.iter().find(|(name, ..)| *name == chip);
    known.map_or_else(Speed::default, |(_, gb_per_s, gflop_per_s)| Speed {
        bytes_per_s: Some(gb_per_s * 1_000_000_000),
        flop_per_s: Some(gflop_per_s * 1_000_000_000),
    })
}

/// Whether the residency ceiling holds there.
pub fn is_apple(chip: &str) -> bool {
    chip.starts_with("Apple")
}

const CHIPS: &[(&str, u64, u64)] = &[
    ("Apple M1", 68, 2_600),
    ("Apple M1 Pro", 200, 5_200),
    ("Apple M1 Max", 400, 10_400),
    ("Apple M1 Ultra", 800, 20_800),
    ("Apple M2", 100, 3_600),
    ("Apple M2 Pro", 200, 6_800),
    ("Apple M2 Max", 400, 13_600),
    ("Apple M2 Ultra", 800, 27_200),
    ("Apple M3", 102, 3_600),
    ("Apple M3 Pro", 153, 6_400),
    ("Apple M3 Max", 409, 14_200),
    ("Apple M3 Ultra", 819, 28_300),
    ("Apple M4", 120, 4_300),
    ("Apple M4 Pro", 273, 8_600),
    ("Apple M4 Max", 546, 17_200),
    ("Apple M5", 153, 4_600),
    ("Apple M5 Pro", 307, 9_200),
    ("Apple M5 Max", 614, 18_400),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chip_is_known_by_its_whole_name() {
        assert_eq!(speed("Apple M4 Pro").bytes_per_s, Some(273_000_000_000));
        assert_eq!(speed("Apple M4").bytes_per_s, Some(120_000_000_000));
        for other in ["", "Apple M4 Pr", "Apple M99", "AMD EPYC"] {
            assert_eq!(speed(other), Speed::default(), "{other}");
        }
        assert!(is_apple("Apple M99") && !is_apple("Intel"));
    }

    /// Within a generation the larger chip is never the slower one.
    #[test]
    fn the_table_is_in_order() {
        for pair in CHIPS.windows(2) {
            let ((small, slow, few), (large, fast, many)) = (pair[0], pair[1]);
            if large.starts_with(&small[..8]) {
                assert!(slow < fast && few < many, "{small} and {large}");
            }
        }
    }
}
