//! How much Apple's GPUs compute, by the names of their chips: published figures, in 10⁹ operations of
//! single precision a second. Of chips that are sold with fewer GPU cores the full one is taken, since
//! the name does not tell them apart. How fast their memory is, [`crate::facts::chips`] knows.

/// None: a chip that is not in the table.
pub fn flop_per_s(chip: &str) -> Option<u64> {
    let known = CHIPS.iter().find(|(name, _)| *name == chip);
    known.map(|(_, gflop_per_s)| gflop_per_s * 1_000_000_000)
}

/// Whether the residency ceiling holds there.
pub fn is_apple(chip: &str) -> bool {
    chip.starts_with("Apple")
}

const CHIPS: &[(&str, u64)] = &[
    ("Apple M1", 2_600),
    ("Apple M1 Pro", 5_200),
    ("Apple M1 Max", 10_400),
    ("Apple M1 Ultra", 20_800),
    ("Apple M2", 3_600),
    ("Apple M2 Pro", 6_800),
    ("Apple M2 Max", 13_600),
    ("Apple M2 Ultra", 27_200),
    ("Apple M3", 3_600),
    ("Apple M3 Pro", 6_400),
    ("Apple M3 Max", 14_200),
    ("Apple M3 Ultra", 28_300),
    ("Apple M4", 4_300),
    ("Apple M4 Pro", 8_600),
    ("Apple M4 Max", 17_200),
    ("Apple M5", 4_600),
    ("Apple M5 Pro", 9_200),
    ("Apple M5 Max", 18_400),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chip_is_known_by_its_whole_name() {
        assert_eq!(flop_per_s("Apple M4 Pro"), Some(8_600_000_000_000));
        assert_eq!(flop_per_s("Apple M4"), Some(4_300_000_000_000));
        for other in ["", "Apple M4 Pr", "Apple M99", "AMD EPYC"] {
            assert_eq!(flop_per_s(other), None, "{other}");
        }
        assert!(is_apple("Apple M99") && !is_apple("Intel"));
    }
}
