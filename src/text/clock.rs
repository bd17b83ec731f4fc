//! `strftime`, as far as chat templates use it, of a time in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// Writes `now` by `format`; the error names what is not known.
pub(super) fn strftime(format: &str, now: SystemTime) -> Result<String, String> {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let time = Time::of(seconds);
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        // `%-d` is `%d` without its padding.
        let mut code = characters.next();
        let bare = code == Some('-');
        if bare {
            code = characters.next();
        }
        let written = code
            .and_then(|code| time.field(code))
            .ok_or_else(|| format!("strftime_now: `{format}` has a code that is not supported"))?;
        let unpadded = written.trim_start_matches(['0', ' ']);
        text.push_str(if !bare {
            &written
        } else if unpadded.is_empty() {
            "0"
        } else {
            unpadded
        });
    }
    Ok(text)
}

struct Time {
    year: u64,
    /// From 0.
    month: usize,
    day: u64,
    /// From 0, the first of January.
    day_of_year: u64,
    /// From 0, Sunday.
    weekday: usize,
    second_of_day: u64,
}

impl Time {
    fn of(unix_s: u64) -> Self {
        let (mut days, second_of_day) = (unix_s / DAY_S, unix_s % DAY_S);
        let weekday = usize::try_from((days + EPOCH_WEEKDAY) % 7).unwrap_or_default();
        // A cycle of 400 years has a whole number of days, so this loop is short for any time.
        let mut year = 1970 + days / DAYS_PER_400_YEARS * 400;
        days %= DAYS_PER_400_YEARS;
        while days >= days_of_year(year) {
            days -= days_of_year(year);
            year += 1;
        }
        let day_of_year = days;
        let mut month = 0;
        while days >= days_of_month(year, month) {
            days -= days_of_month(year, month);
            month += 1;
        }
        Self { year, month, day: days + 1, day_of_year, weekday, second_of_day }
    }

    fn field(&self, code: char) -> Option<String> {
        let (hour, minute) = (self.second_of_day / 3600, self.second_of_day / 60 % 60);
        let hour_of_12 = (hour + 11) % 12 + 1;
        let second = self.second_of_day % 60;
        let (month, day) = (self.month + 1, self.day);
        Some(match code {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{month:02}"),
            'B' => MONTHS[self.month].0.to_owned(),
            'b' | 'h' => MONTHS[self.month].0[..3].to_owned(),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'j' => format!("{:03}", self.day_of_year + 1),
            'A' => WEEKDAYS[self.weekday].to_owned(),
            'a' => WEEKDAYS[self.weekday][..3].to_owned(),
            'H' => format!("{hour:02}"),
            'I' => format!("{hour_of_12:02}"),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'p' => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            'F' => format!("{}-{month:02}-{day:02}", self.year),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const fn days_of_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

const fn days_of_month(year: u64, month: usize) -> u64 {
    MONTHS[month].1 + if month == 1 && is_leap(year) { 1 } else { 0 }
}

const DAY_S: u64 = 86_400;
const DAYS_PER_400_YEARS: u64 = 146_097;
/// The first of January 1970 was a Thursday.
const EPOCH_WEEKDAY: u64 = 4;
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [(&str, u64); 12] = [
    ("January", 31),
    ("February", 28),
    ("March", 31),
    ("April", 30),
    ("May", 31),
    ("June", 30),
    ("July", 31),
    ("August", 31),
    ("September", 30),
    ("October", 31),
    ("November", 30),
    ("December", 31),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_written_as_python_writes_them() {
        // Expected values are those of Python's datetime.strftime.
        for (unix_s, format, expected) in [
            (0, "%d %b %Y, %A", "01 Jan 1970, Thursday"),
            (951_782_400, "%Y-%m-%d %j %a", "2000-02-29 060 Tue"),
            (1_735_689_599, "%B %-d, %Y %H:%M:%S", "December 31, 2024 23:59:59"),
            (1_735_689_600, "%e|%y|%I %p|%%", " 1|25|12 AM|%"),
            (4_107_542_400, "%F %T %Z", "2100-03-01 00:00:00 UTC"),
            (1_700_000_000, "%-I:%M %p", "10:13 PM"),
            (1_735_689_600, "%-H %-M", "0 0"),
        ] {
            let now = UNIX_EPOCH + Duration::from_secs(unix_s);
            assert_eq!(strftime(format, now).as_deref(), Ok(expected), "{unix_s}");
        }
    }

    #[test]
    fn unknown_codes_are_errors() {
        for format in ["%Q", "%", "%-", "%-Q"] {
            assert!(strftime(format, UNIX_EPOCH).is_err(), "{format}");
        }
        let far = UNIX_EPOCH.checked_add(Duration::from_secs(1 << 55)).unwrap_or(UNIX_EPOCH);
        assert!(strftime("%Y", far).is_ok());
    }
}
