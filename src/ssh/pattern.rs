//! The patterns of `ssh_config` and `known_hosts`: `*`, `?`, lists, and `!` in front.

/// Whether `pattern` stands for the whole of `text`; `*` is any run of characters, `?` any one.
/// Letters count the same in both cases, as host names do.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.to_ascii_lowercase(), text.to_ascii_lowercase());
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go on when what follows the last star did not fit: the star takes one more.
    let mut again = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                p += 1;
                again = Some((p, t));
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match again {
                Some((after_star, taken)) => {
                    p = after_star;
                    t = taken + 1;
                    again = Some((p, t));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Whether a list speaks of `text`: one pattern matches, and none with `!` in front does.
pub(super) fn list_matches<'a>(patterns: impl IntoIterator<Item = &'a str>, text: &str) -> bool {
    let mut found = false;
    for pattern in patterns {
        match pattern.strip_prefix('!') {
            Some(excluded) if matches(excluded, text) => return false,
            Some(_) => {}
            None => found |= matches(pattern, text),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, expected) in [
            ("mini", "mini", true),
            ("mini", "MINI", true),
            ("mini", "mini2", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("*.local", "mini.local", true),
            ("*.local", ".local", true),
            ("*.local", "local", false),
            ("m?ni*", "mini.local", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyyd", false),
            ("*a*a*a*b", &"a".repeat(200), false),
            ("[mini]:*", "[mini]:2222", true),
            ("192.168.1.?", "192.168.1.42", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn an_excluded_name_is_not_of_the_list() {
        for (list, expected) in [
            (&["*.local", "!mini.local"][..], false),
            (&["!mini.local", "*.local"], false),
            (&["!other.local", "*.local"], true),
            (&["!other.local"], false),
            (&[], false),
        ] {
            assert_eq!(list_matches(list.iter().copied(), "mini.local"), expected, "{list:?}");
        }
    }
}
