//! `~/.ssh/config`, read as `ssh_config(5)` says: the first value counts, `Host` and `Match` choose, an
//! `Include` is read where it stands. Values are kept as they are written; [`super::settings`] gives them
//! their meaning. The crates that read this file put what follows a `Match` into the block before it and
//! let the last value win, which would reach another machine than `ssh` does.
//!
//! No IO here: files come in through [`Files`].

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::error::{Place, SshError};
use super::pattern;

/// Whose configuration is read, and for which host.
#[derive(Debug)]
pub(super) struct Query<'a> {
    /// As it was typed.
    pub(super) host: &'a str,
    /// As it was typed; the configuration may name another one where this is none.
    pub(super) user: Option<&'a str>,
    pub(super) local_user: &'a str,
}

/// Where an `Include` leads.
pub(super) trait Files {
    /// The files that the words of an `Include` name, in order, with their text.
    fn include(&mut self, pattern: &str) -> Result<Vec<(PathBuf, String)>, String>;
}

/// The values that count for one host, by keyword in lower case.
#[derive(Debug, Default)]
pub(super) struct Values {
    first: HashMap<String, Value>,
    identity_files: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) words: Vec<String>,
    pub(super) at: Place,
}

impl Values {
    pub(super) fn read(
        path: &Path,
        text: &str,
        query: &Query<'_>,
        files: &mut dyn Files,
    ) -> Result<Self, SshError> {
        let mut reading = Reading { query, files, values: Self::default() };
        reading.file(path, text, true, 0)?;
        Ok(reading.values)
    }

    pub(super) fn of(&self, keyword: &str) -> Option<&Value> {
        self.first.get(keyword)
    }

    /// Each `IdentityFile` counts, not the first alone.
    pub(super) fn identity_files(&self) -> &[Value] {
        &self.identity_files
    }
}

struct Reading<'a> {
    query: &'a Query<'a>,
    files: &'a mut dyn Files,
    values: Values,
}

impl Reading<'_> {
    /// `applies` is whether the block counts in which the file is included.
    fn file(
        &mut self,
        path: &Path,
        text: &str,
        applies: bool,
        depth: usize,
    ) -> Result<(), SshError> {
        let mut active = applies;
        for (line, number) in text.lines().zip(1..) {
            let at = Place { path: path.to_owned(), line: number };
            let words = words(line).map_err(|why| SshError::Config { at: at.clone(), why })?;
            let Some((keyword, words)) = words.split_first() else { continue };
            let keyword = keyword.to_ascii_lowercase();
            if words.is_empty() {
                return Err(SshError::Config { at, why: format!("{keyword} has no value") });
            }
            match keyword.as_str() {
                "host" => {
                    let patterns = words.iter().map(String::as_str);
                    active = applies && pattern::list_matches(patterns, self.query.host);
                }
                "match" => active = applies && self.matches(words, &at)?,
                "include" if active => self.include(words, &at, depth)?,
                "identityfile" if active => {
                    self.values.identity_files.push(Value { words: words.to_vec(), at });
                }
                _ if active => {
                    let value = Value { words: words.to_vec(), at };
                    self.values.first.entry(slot(&keyword).to_owned()).or_insert(value);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn include(&mut self, words: &[String], at: &Place, depth: usize) -> Result<(), SshError> {
        let fault = |why| SshError::Config { at: at.clone(), why };
        if depth == DEPTH_MAX {
            return Err(fault(format!("more than {DEPTH_MAX} files include one another")));
        }
        for word in words {
            for (path, text) in self.files.include(word).map_err(fault)? {
                self.file(&path, &text, true, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Criteria that need no command and no second pass; `!` in front turns one round.
    fn matches(&self, words: &[String], at: &Place) -> Result<bool, SshError> {
        let mut words = words.iter();
        let mut all = true;
        while let Some(word) = words.next() {
            let (word, wanted) = match word.strip_prefix('!') {
                Some(word) => (word, false),
                None => (word.as_str(), true),
            };
            let (word, given) = match word.split_once('=') {
                Some((word, given)) => (word, Some(given)),
                None => (word, None),
            };
            let lower = word.to_ascii_lowercase();
            let subject = match lower.as_str() {
                "all" => {
                    all &= wanted;
                    continue;
                }
                "host" => self.host_name(),
                "originalhost" => self.query.host.to_owned(),
                "user" => self.user(),
                "localuser" => self.query.local_user.to_owned(),
                _ => {
                    return Err(SshError::NeedsSystem {
                        what: format!("`Match {lower}`"),
                        at: Some(at.clone()),
                    });
                }
            };
            let why = || format!("Match {lower} has no value");
            let patterns = given.or_else(|| words.next().map(String::as_str));
            let patterns =
                patterns.ok_or_else(|| SshError::Config { at: at.clone(), why: why() })?;
            all &= pattern::list_matches(patterns.split(','), &subject) == wanted;
        }
        Ok(all)
    }

    /// As far as it is known at this line, which is what counts here.
    fn host_name(&self) -> String {
        let name = self.values.of("hostname").and_then(|value| value.words.first());
        name.map_or_else(|| self.query.host.to_owned(), |name| name.replace("%h", self.query.host))
    }

    fn user(&self) -> String {
        let configured = || self.values.of("user").and_then(|value| value.words.first()).cloned();
        let typed = self.query.user.map(str::to_owned);
        typed.or_else(configured).unwrap_or_else(|| self.query.local_user.to_owned())
    }
}

/// Keywords that share one value: of two, the first that is written counts.
fn slot(keyword: &str) -> &str {
    match keyword {
        "proxyjump" | "proxycommand" => "proxy",
        "challengeresponseauthentication" | "skeyauthentication" => "kbdinteractiveauthentication",
        "dsaauthentication" | "rsaauthentication" => "pubkeyauthentication",
        other => other,
    }
}

/// A line's keyword and values: blanks between them, one `=` after the first, double quotes around what
/// has blanks in it, and `#` where a word would begin ends it.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let mut word = String::new();
        let mut quoted = false;
        let mut end = rest.len();
        let mut chars = rest.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => quoted = !quoted,
                '\\' if chars.peek().is_some_and(|(_, next)| matches!(next, '"' | '\\')) => {
                    word.extend(chars.next().map(|(_, next)| next));
                }
                c if !quoted && (c.is_whitespace() || (c == '=' && words.is_empty())) => {
                    end = at;
                    break;
                }
                c => word.push(c),
            }
        }
        if quoted {
            return Err("a quotation mark is not closed".to_owned());
        }
        words.push(word);
        rest = rest[end..].trim_start();
        if words.len() == 1 {
            rest = rest.strip_prefix('=').unwrap_or(rest).trim_start();
        }
    }
    Ok(words)
}

/// As OpenSSH has it.
const DEPTH_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Files by the word that includes them.
    struct Shelf(HashMap<&'static str, &'static str>);

    impl Files for Shelf {
        fn include(&mut self, pattern: &str) -> Result<Vec<(PathBuf, String)>, String> {
            let text = self.0.get(pattern).ok_or_else(|| format!("no {pattern}"))?;
            Ok(vec![(PathBuf::from(pattern), (*text).to_owned())])
        }
    }

    fn read_as(text: &str, host: &str, user: Option<&str>) -> Result<Values, SshError> {
        let shelf = [
            ("more", "User included\nHost mini\nPort 7\nHost other\nPort 8\n"),
            ("loop", "Include loop\n"),
        ];
        let query = Query { host, user, local_user: "me" };
        Values::read(Path::new("config"), text, &query, &mut Shelf(HashMap::from(shelf)))
    }

    fn value(text: &str, keyword: &str) -> Option<String> {
        let values = read_as(text, "mini", None).expect(text);
        values.of(keyword).map(|value| value.words.join("|"))
    }

    #[test]
    fn the_first_value_of_a_block_that_applies_counts() {
        for (text, keyword, expected) in [
            ("User a\nUser b", "user", Some("a")),
            ("Host other\nUser a\nHost mini\nUser b\nHost *\nUser c", "user", Some("b")),
            ("Host mini other\n  user=anna", "user", Some("anna")),
            ("Host *\n\tUSER = \"anna b\"  # hers", "user", Some("anna b")),
            ("Host * !mini\nUser a\nHost m?n*\nUser b", "user", Some("b")),
            ("# User a\n\n   \n", "user", None),
            ("Host other\nUser a", "user", None),
            ("ProxyJump none\nProxyCommand x", "proxy", Some("none")),
            ("ChallengeResponseAuthentication no", "kbdinteractiveauthentication", Some("no")),
            ("UserKnownHostsFile \"/a b\" /c", "userknownhostsfile", Some("/a b|/c")),
            ("HostName \"a\\\"b\\\\c\\d\"", "hostname", Some("a\"b\\c\\d")),
            ("Match all\nUser a", "user", Some("a")),
            ("Match host mini,x\nUser a", "user", Some("a")),
            ("Match !host mini\nUser a\nMatch all\nUser b", "user", Some("b")),
            (
                "HostName %h.local\nMatch host mini.local originalhost mini\nPort 7",
                "port",
                Some("7"),
            ),
            ("Match localuser me user me\nPort 7", "port", Some("7")),
            ("User a\nMatch user=a\nPort 7", "port", Some("7")),
            ("Host other\nPort 1\nMatch host mini\nPort 2", "port", Some("2")),
        ] {
            assert_eq!(value(text, keyword).as_deref(), expected, "{text}");
        }
        let typed = read_as("Match user anna\nPort 7", "mini", Some("anna")).expect("read");
        assert!(typed.of("port").is_some());
    }

    #[test]
    fn an_included_file_counts_where_it_stands() {
        assert_eq!(value("Include more\nUser b", "user").as_deref(), Some("included"));
        assert_eq!(value("Include more", "port").as_deref(), Some("7"));
        assert_eq!(
            value("Host other\nInclude more\nHost mini\nUser b", "user").as_deref(),
            Some("b")
        );
        // What an included file chooses ends with it.
        assert_eq!(value("Host mini\nInclude more\nUser late\nTag x", "tag").as_deref(), Some("x"));
        let error = read_as("Include loop", "mini", None).expect_err("endless").to_string();
        assert!(error.contains("16 files"), "{error}");
        let error = read_as("\nInclude nothing", "mini", None).expect_err("none").to_string();
        assert!(error.contains("config:2") && error.contains("no nothing"), "{error}");
    }

    #[test]
    fn every_identity_file_counts() {
        let text = "IdentityFile a\nHost other\nIdentityFile b\nHost mini\nIdentityFile c\n";
        let values = read_as(text, "mini", None).expect("read");
        let names: Vec<_> = values.identity_files().iter().map(|v| v.words[0].as_str()).collect();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(values.identity_files()[1].at.line, 5);
    }

    #[test]
    fn what_only_ssh_can_judge_and_what_is_damaged_is_named() {
        for (text, expected) in [
            ("Match exec \"true\"\nUser a", "`Match exec`"),
            ("\nMatch host x final", "config:2"),
            ("Match canonical", "--ssh system"),
            ("Host", "no value"),
            ("User \"a", "not closed"),
            ("Match host", "no value"),
        ] {
            let error = read_as(text, "mini", None).expect_err(text);
            let said = format!("{error} {}", error.hints().join(" "));
            assert!(said.contains(expected), "{text}: {said}");
        }
    }
}
