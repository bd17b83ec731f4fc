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

/// A round trip or what a token waits, in microseconds; shown in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u32);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = f64::from(self.0) / 1000.0;
        if ms < 10.0 { write!(f, "{ms:.2} ms") } else { write!(f, "{ms:.0} ms") }
    }
}

/// Bits per second of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitRate(pub u64);

impl fmt::Display for BitRate {
    #[expect(clippy::cast_precision_loss, reason = "a display of one decimal")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000_000_000 => write!(f, "{:.0} Mbit/s", self.0 as f64 / 1e6),
            _ => write!(f, "{:.1} Gbit/s", self.0 as f64 / 1e9),
        }
    }
}

/// A size in tenths of a GiB, rounded once: sums of what is shown add up as they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tenths(u64);

impl Tenths {
    pub const ZERO: Self = Self(0);

    pub const fn of(bytes: u64) -> Self {
        let (whole, rest) = (bytes / GIB, bytes % GIB);
        Self(whole * 10 + (rest * 10 + GIB / 2) / GIB)
    }
}

impl std::ops::Sub for Tenths {
    type Output = Self;

    /// Never below zero.
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `pad` heeds the width that a table asks for.
        f.pad(&format!("{}.{}", self.0 / 10, self.0 % 10))
    }
}

/// `12GiB`, `12G`, `1.5GiB`, `800MiB`: what a person would write.
impl std::str::FromStr for Bytes {
    type Err = BytesError;

    fn from_str(text: &str) -> Result<Self, BytesError> {
        let fault = || BytesError(text.to_owned());
        let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(fault)?;
        let unit = match text[at..].to_ascii_lowercase().as_str() {
            "k" | "kib" => KIB,
            "m" | "mib" => MIB,
            "g" | "gib" => GIB,
            _ => return Err(fault()),
        };
        let (whole, part) = text[..at].trim().split_once('.').unwrap_or((text[..at].trim(), "0"));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        if !is_digits(whole) || !is_digits(part) || part.len() > 3 {
            return Err(fault());
        }
        let thousandths = format!("{part:0<3}").parse::<u64>().map_err(|_| fault())?;
        let bytes = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(unit));
        bytes
            .and_then(|bytes| bytes.checked_add(unit * thousandths / 1000))
            .map(Self)
            .ok_or_else(fault)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size; write it as 12GiB or 800MiB")]
pub struct BytesError(String);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const HALF_GIB: u64 = 1 << 29;
const GIB: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_users_write_them() {
        for (text, bytes) in [
            ("12GiB", 12 * GIB),
            ("12g", 12 * GIB),
            ("1.5 GiB", 3 * GIB / 2),
            ("800MiB", 800 * MIB),
            ("0k", 0),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for odd in
            ["", "12", "GiB", "-1GiB", "1,5GiB", "1.GiB", "1.2345GiB", "99999999999GiB", "12GB"]
        {
            assert_eq!(odd.parse::<Bytes>(), Err(BytesError(odd.to_owned())), "{odd}");
        }
    }

    #[test]
    fn tenths_are_rounded_once() {
        for (bytes, shown) in [
            (0, "0.0"),
            (GIB / 20 - 1, "0.0"),
            (GIB / 20 + 1, "0.1"),
            (GIB - 1, "1.0"),
            (27 * GIB, "27.0"),
            (u64::MAX, "17179869184.0"),
        ] {
            assert_eq!(Tenths::of(bytes).to_string(), shown);
        }
        assert_eq!(Tenths::of(GIB) - Tenths::of(2 * GIB), Tenths::ZERO);
    }

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

    #[test]
    fn links_are_shown_as_users_read_them() {
        for (us, shown) in [(0, "0.00 ms"), (634, "0.63 ms"), (9999, "10.00 ms"), (18_000, "18 ms")]
        {
            assert_eq!(Micros(us).to_string(), shown);
        }
        for (rate, shown) in
            [(93_400_000, "93 Mbit/s"), (999_000_000, "999 Mbit/s"), (9_410_000_000, "9.4 Gbit/s")]
        {
            assert_eq!(BitRate(rate).to_string(), shown);
        }
    }
}
