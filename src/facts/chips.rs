//! How fast the memory of Apple's chips is, by their names: the figures of Apple's technical
//! specifications. No command tells it.
//!
//! A chip may come in two forms of one name, which differ by the number of CPU cores; where that does
//! not tell them apart either, the slower one counts.

/// Bytes per second of a chip as `sysctl` names it (`Apple M4 Pro`), with its CPU cores where they are
/// known. None: a chip that is not in the table.
pub fn memory_bytes_per_s(chip: &str, cores: Option<u64>) -> Option<u64> {
    let name = chip.trim().strip_prefix("Apple ")?;
    let has_cores = |least: u64| least == 0 || cores.is_some_and(|cores| cores >= least);
    let forms = CHIPS.iter().filter(|(known, least, _)| *known == name && has_cores(*least));
    forms.map(|(.., mb_per_s)| mb_per_s * 1_000_000).max()
}

/// Name, CPU cores at least, and megabytes (10^6) per second.
const CHIPS: &[(&str, u64, u64)] = &[
    ("M1", 0, 68_250),
    ("M1 Pro", 0, 200_000),
    ("M1 Max", 0, 400_000),
    ("M1 Ultra", 0, 800_000),
    ("M2", 0, 100_000),
    ("M2 Pro", 0, 200_000),
    ("M2 Max", 0, 400_000),
    ("M2 Ultra", 0, 800_000),
    ("M3", 0, 100_000),
    ("M3 Pro", 0, 150_000),
    ("M3 Max", 0, 300_000),
    ("M3 Max", 16, 400_000),
    ("M3 Ultra", 0, 819_000),
    ("M4", 0, 120_000),
    ("M4 Pro", 0, 273_000),
    ("M4 Max", 0, 410_000),
    ("M4 Max", 16, 546_000),
    ("M5", 0, 153_000),
    ("M5 Pro", 0, 307_000),
    ("M5 Max", 0, 460_000),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chip_is_found_by_its_whole_name() {
        for (chip, cores, gb_per_s) in [
            ("Apple M1", Some(8), Some(68)),
            ("Apple M2 Pro", None, Some(200)),
            ("Apple M3 Max", None, Some(300)),
            ("Apple M3 Max", Some(14), Some(300)),
            ("Apple M3 Max", Some(16), Some(400)),
            ("Apple M4 Max", Some(16), Some(546)),
            ("Apple M3 Ultra", Some(32), Some(819)),
            ("Apple M5 Max", Some(18), Some(460)),
            ("Apple M4 Ultra", None, None),
            ("Apple M9", None, None),
            ("M4", None, None),
            ("Intel(R) Core(TM) i7-8700B CPU @ 3.20GHz", None, None),
            ("", None, None),
        ] {
            let found = memory_bytes_per_s(chip, cores);
            assert_eq!(found.map(|rate| rate / 1_000_000_000), gb_per_s, "{chip}, {cores:?}");
        }
    }
}
