//! Stop strings: an answer ends before the first of them, and nothing of one is ever shown.
//!
//! Text comes in pieces of any size. What could be the beginning of a stop string is held back until
//! it turns out to be one or not. Of several that stand in the text the one that is complete first
//! counts, and of those the longest: so the outcome does not depend on how the text was cut. Pure:
//! knows neither tokens nor clients. Start at [`StopMatcher::push`].

/// Looks for stop strings in a text that grows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopMatcher {
    /// None of them is empty.
    stops: Vec<String>,
    /// Shorter than the longest stop string.
    held: String,
    is_stopped: bool,
}

impl StopMatcher {
    /// Empty strings are left out: they would stop everything.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, ..Self::default() }
    }

    /// More text; gives what may be shown of all that came so far and was not shown yet. After a
    /// match nothing is.
    pub fn push(&mut self, text: &str) -> String {
        if self.is_stopped {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        self.held.push_str(text);
        if let Some(start) = self.first_match() {
            self.is_stopped = true;
            let mut shown = std::mem::take(&mut self.held);
            shown.truncate(start);
            return shown;
        }
        let held = self.held.split_off(self.undecided());
        std::mem::replace(&mut self.held, held)
    }

    /// The text has ended: gives what was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Whether a stop string was found.
    pub const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Where the stop string begins that is complete first.
    fn first_match(&self) -> Option<usize> {
        let matches = self.stops.iter().filter_map(|stop| {
            let start = self.held.find(stop)?;
            Some((start + stop.len(), start))
        });
        matches.min().map(|(_, start)| start)
    }

    /// From where on the held text may be the beginning of a stop string.
    fn undecided(&self) -> usize {
        let starts = self.held.char_indices().map(|(at, _)| at);
        let mut starts = starts.filter(|at| {
            let rest = &self.held[*at..];
            self.stops.iter().any(|stop| stop.starts_with(rest))
        });
        starts.next().unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The pieces shown, the rest at the end, and whether it stopped.
    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, String, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let shown = pieces.iter().map(|piece| matcher.push(piece)).collect();
        (shown, matcher.finish(), matcher.is_stopped())
    }

    #[test]
    fn what_is_shown_and_what_is_held() {
        for (stops, pieces, shown, rest, stopped) in [
            (&[][..], &["a", "b"][..], &["a", "b"][..], "", false),
            (&[""], &["a", ""], &["a", ""], "", false),
            (&["END"], &["a E", "N", "x"], &["a ", "", "ENx"], "", false),
            (&["END"], &["a E", "N", "D more", "b"], &["a ", "", "", ""], "", true),
            (&["END"], &["aENDb"], &["a"], "", true),
            (&["END"], &["aEN"], &["a"], "EN", false),
            (&["END"], &["EEND"], &["E"], "", true),
            (&["aab"], &["aa", "a", "b"], &["", "a", ""], "", true),
            // Held from the earliest beginning.
            (&["abcd", "cx"], &["abc", "x"], &["", "ab"], "", true),
            // `bc` is complete before `abcd` is, and `abc` before neither.
            (&["abcd", "bc"], &["abcd"], &["a"], "", true),
            (&["bc", "abc"], &["xabc"], &["x"], "", true),
            (&["é!"], &["é", "è", "é", "!"], &["", "éè", "", ""], "", true),
            (&["\n\n"], &["a\n", "b\n", "\nc"], &["a", "\nb", ""], "", true),
        ] {
            let (got, end, is_stopped) = run(stops, pieces);
            assert_eq!(
                (got, end.as_str(), is_stopped),
                (shown.iter().map(|s| (*s).to_owned()).collect(), rest, stopped),
                "{stops:?} in {pieces:?}"
            );
        }
    }

    /// Cuts `text` after each character whose bit is set.
    fn cut(text: &str, bits: u32) -> Vec<&str> {
        let mut pieces = Vec::new();
        let mut start = 0;
        for (number, (at, character)) in text.char_indices().enumerate() {
            if bits >> number & 1 == 1 {
                let end = at + character.len_utf8();
                pieces.push(&text[start..end]);
                start = end;
            }
        }
        pieces.push(&text[start..]);
        pieces
    }

    /// By the definition: the shortest beginning of `text` that ends in a stop string, without the
    /// longest one that it ends in.
    fn expected<'a>(stops: &[String], text: &'a str) -> (&'a str, bool) {
        let ends = text.char_indices().map(|(at, character)| at + character.len_utf8());
        for end in ends {
            let so_far = &text[..end];
            let longest = stops.iter().filter(|stop| so_far.ends_with(stop.as_str()));
            if let Some(length) = longest.map(String::len).max() {
                return (&text[..end - length], true);
            }
        }
        (text, false)
    }

    proptest! {
        /// Every cut of a text, from one piece to single characters, shows the same; at no time is
        /// anything of a stop string shown, nor more held than might be one.
        #[test]
        fn no_cut_changes_what_is_shown(
            text in "[abé]{0,9}",
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
        ) {
            let (whole, is_stopped) = expected(&stops, &text);
            let longest = stops.iter().map(String::len).max().unwrap_or(0);
            for bits in 0..1_u32 << text.chars().count() {
                let mut matcher = StopMatcher::new(&stops);
                let mut shown = String::new();
                let mut given = 0;
                for piece in cut(&text, bits) {
                    shown.push_str(&matcher.push(piece));
                    given += piece.len();
                    prop_assert!(whole.starts_with(&shown), "{:?} is not of {:?}", shown, whole);
                    prop_assert!(matcher.is_stopped() || given - shown.len() < longest.max(1));
                }
                shown.push_str(&matcher.finish());
                prop_assert_eq!(&shown, whole);
                prop_assert_eq!(matcher.is_stopped(), is_stopped);
            }
        }
    }
}
