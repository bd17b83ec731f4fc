//! What `~/.ssh/config` means for one destination. What this client does not do is refused by name and
//! never passed over where it would lead to another machine, or trust one that `ssh` would not.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::config::{Files, Query, Value, Values};
use super::destination::{Destination, check_host, check_user, port_number};
use super::error::{Place, SshError};
use super::known_hosts::name_of;
use super::pattern;

/// The person at this machine.
#[derive(Debug, Clone)]
pub struct User {
    pub name: String,
    pub home: PathBuf,
    /// `SSH_AUTH_SOCK`.
    pub agent: Option<PathBuf>,
    /// An environment variable, for `${NAME}`.
    pub variable: fn(&str) -> Option<String>,
}

/// All that is needed to reach a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where to connect.
    pub host: String,
    pub port: u16,
    pub user: String,
    /// The name under which `known_hosts` has it.
    pub(super) known_as: String,
    /// In the order in which they are tried.
    pub(super) identity_files: Vec<PathBuf>,
    /// Whether a person chose them; else some may be missing.
    pub(super) chosen: bool,
    /// No key of the agent but those of `identity_files`.
    pub(super) identities_only: bool,
    pub(super) agent: Option<PathBuf>,
    /// New hosts are written into the first of the user's.
    pub(super) user_known_hosts: Vec<PathBuf>,
    pub(super) global_known_hosts: Vec<PathBuf>,
    pub strict: StrictHostKeys,
    pub(super) methods: Methods,
    /// `BatchMode yes`: nobody is asked anything.
    pub batch: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrictHostKeys {
    /// A new host key is shown and asked for. Also for `no` and `accept-new`: pairing hands out trust, so
    /// nothing is accepted unseen.
    Ask,
    /// It is refused.
    Yes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Methods {
    pub(super) public_key: bool,
    pub(super) password: bool,
    pub(super) keyboard_interactive: bool,
}

impl Settings {
    /// Reads `~/.ssh/config`, which may be missing.
    pub fn load(to: &Destination, user: &User) -> Result<Self, SshError> {
        let path = user.home.join(".ssh/config");
        let text = read_text(&path)?.unwrap_or_default();
        Self::read(to, user, &path, &text, &mut Disk { user })
    }

    fn read(
        to: &Destination,
        user: &User,
        path: &Path,
        text: &str,
        files: &mut dyn Files,
    ) -> Result<Self, SshError> {
        let query = Query { host: &to.host, user: to.user.as_deref(), local_user: &user.name };
        let values = Values::read(path, text, &query, files)?;
        refuse_what_needs_ssh(&values)?;
        let word = |keyword| values.of(keyword).map(|value| (value.words[0].as_str(), &value.at));

        let host = match word("hostname") {
            Some((name, at)) => {
                let name = expand(name, at, &[('h', &to.host), ('n', &to.host)])?;
                check_host(&name).map_err(|why| fault(at, format!("HostName {name}: {why}")))?;
                name
            }
            None => to.host.clone(),
        };
        let port = match (to.port, word("port")) {
            (Some(port), _) => port,
            (None, Some((digits, at))) => port_number(digits).ok_or_else(|| {
                fault(at, format!("Port {digits} is not a number from 1 to 65535"))
            })?,
            (None, None) => 22,
        };
        let name = match (&to.user, word("user")) {
            (Some(name), _) => name.clone(),
            (None, Some((name, at))) => {
                check_user(name).map_err(|why| fault(at, format!("User {name}: {why}")))?;
                name.to_owned()
            }
            (None, None) => user.name.clone(),
        };
        let alias = match word("hostkeyalias") {
            Some((alias, at)) => {
                check_host(alias)
                    .map_err(|why| fault(at, format!("HostKeyAlias {alias}: {why}")))?;
                Some(alias.to_ascii_lowercase())
            }
            None => None,
        };

        let home = user.home.to_string_lossy().into_owned();
        let port_text = port.to_string();
        let tokens: [(char, &str); 6] = [
            ('h', &host),
            ('n', &to.host),
            ('p', &port_text),
            ('r', &name),
            ('u', &user.name),
            ('d', &home),
        ];
        let file = |word: &str, at: &Place| file_named(word, at, user, &tokens);
        let files = |value: &Value| -> Result<Vec<PathBuf>, SshError> {
            let named = value.words.iter().filter(|word| !is(word, "none"));
            named.map(|word| file(word, &value.at)).collect()
        };
        let listed = |keyword, defaults: &[&str], base: &Path| match values.of(keyword) {
            Some(value) => files(value),
            None => Ok(defaults.iter().map(|name| base.join(name)).collect()),
        };
        let ssh = user.home.join(".ssh");
        let mut identity_files = Vec::new();
        for value in values.identity_files() {
            identity_files.extend(files(value)?);
        }
        let chosen = !values.identity_files().is_empty();
        if !chosen {
            identity_files = DEFAULT_KEYS.iter().map(|name| ssh.join(name)).collect();
        }
        let mut seen = HashSet::new();
        identity_files.retain(|path| seen.insert(path.clone()));

        let agent = match word("identityagent") {
            None => user.agent.clone(),
            Some((word, _)) if is(word, "none") => None,
            Some(("SSH_AUTH_SOCK", _)) => user.agent.clone(),
            Some((word, at)) => {
                match word.strip_prefix('$').filter(|name| !name.starts_with('{')) {
                    Some(name) => (user.variable)(name).map(PathBuf::from),
                    None => Some(file(word, at)?),
                }
            }
        };
        let on = |keyword, default| match word(keyword) {
            None => Ok(default),
            Some((word, at)) => yes_or_no(keyword, word, at),
        };
        Ok(Self {
            known_as: alias.unwrap_or_else(|| name_of(&host, port)),
            identity_files,
            chosen,
            identities_only: on("identitiesonly", false)?,
            agent,
            user_known_hosts: listed("userknownhostsfile", &["known_hosts", "known_hosts2"], &ssh)?,
            global_known_hosts: listed(
                "globalknownhostsfile",
                &["ssh_known_hosts", "ssh_known_hosts2"],
                Path::new("/etc/ssh"),
            )?,
            strict: match word("stricthostkeychecking") {
                Some((word, _)) if is(word, "yes") || is(word, "true") => StrictHostKeys::Yes,
                _ => StrictHostKeys::Ask,
            },
            methods: Methods {
                // `host-bound` and `unbound` are forms of yes.
                public_key: word("pubkeyauthentication").is_none_or(|(word, _)| !is(word, "no")),
                password: on("passwordauthentication", true)?,
                keyboard_interactive: on("kbdinteractiveauthentication", true)?,
            },
            batch: on("batchmode", false)?,
            host,
            port,
            user: name,
        })
    }
}

/// Values without which `ssh` would do something else: another way, another proof, another name.
fn refuse_what_needs_ssh(values: &Values) -> Result<(), SshError> {
    for (keyword, shown, harmless) in [
        ("proxy", "ProxyJump or ProxyCommand", &["none"][..]),
        ("certificatefile", "CertificateFile", &["none"]),
        ("pkcs11provider", "PKCS11Provider", &["none"]),
        ("securitykeyprovider", "SecurityKeyProvider", &["none", "internal"]),
        ("revokedhostkeys", "RevokedHostKeys", &["none"]),
        ("canonicalizehostname", "CanonicalizeHostname", &["no", "false", "none"]),
    ] {
        let Some(value) = values.of(keyword) else { continue };
        if !harmless.iter().any(|word| is(&value.words[0], word)) {
            let at = Some(value.at.clone());
            return Err(SshError::NeedsSystem { what: shown.to_owned(), at });
        }
    }
    Ok(())
}

fn is(word: &str, other: &str) -> bool {
    word.eq_ignore_ascii_case(other)
}

fn yes_or_no(keyword: &str, word: &str, at: &Place) -> Result<bool, SshError> {
    match word.to_ascii_lowercase().as_str() {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => Err(fault(at, format!("{keyword} {word} is neither yes nor no"))),
    }
}

fn file_named(
    word: &str,
    at: &Place,
    user: &User,
    tokens: &[(char, &str)],
) -> Result<PathBuf, SshError> {
    let path = in_home(&with_variables(word, at, user)?, user);
    let text = path.to_str().ok_or_else(|| fault(at, format!("{word} is not UTF-8")))?;
    let path = PathBuf::from(expand(text, at, tokens)?);
    // As ssh has it: what has no place of its own is taken from where one stands.
    std::path::absolute(&path).map_err(|error| fault(at, format!("{word}: {error}")))
}

fn in_home(text: &str, user: &User) -> PathBuf {
    match text.strip_prefix("~/") {
        Some(rest) => user.home.join(rest),
        None if text == "~" => user.home.clone(),
        None => PathBuf::from(text),
    }
}

/// `${NAME}`s.
fn with_variables(text: &str, at: &Place, user: &User) -> Result<String, SshError> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after
            .split_once('}')
            .ok_or_else(|| fault(at, format!("{text}: a brace is not closed")))?;
        let value = (user.variable)(name)
            .ok_or_else(|| fault(at, format!("{text}: ${{{name}}} is not set here")))?;
        out.push_str(before);
        out.push_str(&value);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// `%h` and the like.
fn expand(text: &str, at: &Place, tokens: &[(char, &str)]) -> Result<String, SshError> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('%') => out.push('%'),
            Some(token) => match tokens.iter().find(|(name, _)| *name == token) {
                Some((_, value)) => out.push_str(value),
                None => {
                    let what = format!("%{token} in {text}");
                    return Err(SshError::NeedsSystem { what, at: Some(at.clone()) });
                }
            },
            None => return Err(fault(at, format!("{text} ends with a lone %"))),
        }
    }
    Ok(out)
}

fn fault(at: &Place, why: String) -> SshError {
    SshError::Config { at: at.clone(), why }
}

/// Includes from the disk; those without a place of their own lie in `~/.ssh`.
struct Disk<'a> {
    user: &'a User,
}

impl Files for Disk<'_> {
    fn include(&mut self, word: &str) -> Result<Vec<(PathBuf, String)>, String> {
        let path = self.user.home.join(".ssh").join(in_home(word, self.user));
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let folder = path.parent().unwrap_or(Path::new("/"));
        if folder.to_string_lossy().contains(['*', '?', '[']) || name.contains('[') {
            return Err(format!(
                "Include {word}: only * and ? in the last part are read; `--ssh system` reads all"
            ));
        }
        let mut paths = Vec::new();
        if name.contains(['*', '?']) {
            let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            let fits = |found: &String| !found.starts_with('.') && pattern::matches(name, found);
            paths.extend(names.filter(fits).take(INCLUDED_MAX).map(|found| folder.join(found)));
            paths.sort();
        } else {
            paths.push(path);
        }
        let mut found = Vec::new();
        for path in paths {
            // One that is not there is passed over, as ssh does.
            if let Some(text) = read_text(&path).map_err(|error| error.to_string())? {
                found.push((path, text));
            }
        }
        Ok(found)
    }
}

/// A file of text within bounds; none where there is none.
pub(super) fn read_text(path: &Path) -> Result<Option<String>, SshError> {
    let fault = |why: String| SshError::File { path: path.to_owned(), why };
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() => return Err(fault("it is not a file".to_owned())),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fault(error.to_string())),
    }
    let file = std::fs::File::open(path).map_err(|error| fault(error.to_string()))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| fault(error.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(fault(format!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    // A byte that is no text is in a comment, or in a line that says nothing to us.
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

const DEFAULT_KEYS: &[&str] = &["id_ed25519", "id_ecdsa", "id_rsa", "id_ecdsa_sk", "id_ed25519_sk"];
/// Twenty thousand hosts.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;
const INCLUDED_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    struct None_;

    impl Files for None_ {
        fn include(&mut self, _: &str) -> Result<Vec<(PathBuf, String)>, String> {
            Ok(Vec::new())
        }
    }

    fn user() -> User {
        let variable = |name: &str| (name == "KEYS").then(|| "/keys".to_owned());
        let (name, home) = ("me".to_owned(), PathBuf::from("/home/me"));
        User { name, home, agent: Some(PathBuf::from("/agent")), variable }
    }

    fn read(to: &str, text: &str) -> Result<Settings, SshError> {
        let to = to.parse().expect("a destination");
        Settings::read(&to, &user(), Path::new("config"), text, &mut None_)
    }

    fn settings(to: &str, text: &str) -> Settings {
        read(to, text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn paths(paths: &[&str]) -> Vec<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn without_a_file_all_is_as_ssh_has_it() {
        let plain = settings("anna@mini.local", "");
        assert_eq!(
            (plain.host.as_str(), plain.port, plain.user.as_str()),
            ("mini.local", 22, "anna")
        );
        assert_eq!(plain.known_as, "mini.local");
        assert!(plain.identity_files.starts_with(&paths(&["/home/me/.ssh/id_ed25519"])));
        assert_eq!(plain.agent, Some(PathBuf::from("/agent")));
        assert_eq!(plain.user_known_hosts[0], PathBuf::from("/home/me/.ssh/known_hosts"));
        assert_eq!(plain.global_known_hosts[0], PathBuf::from("/etc/ssh/ssh_known_hosts"));
        assert!(!plain.chosen && !plain.identities_only && !plain.batch);
        assert_eq!(settings("mini", "").user, "me");
        assert_eq!(settings("mini:2222", "").known_as, "[mini]:2222");
    }

    #[test]
    fn the_file_says_where_and_as_whom_and_the_command_line_counts_more() {
        let text = "Host mini\nHostName %h.example.org\nUser anna\nPort 2222\n";
        let found = settings("mini", text);
        let to = |found: &Settings| (found.host.clone(), found.port, found.user.clone());
        assert_eq!(to(&found), ("mini.example.org".to_owned(), 2222, "anna".to_owned()));
        assert_eq!(found.known_as, "[mini.example.org]:2222");
        let typed = settings("bob@mini:7", text);
        assert_eq!(to(&typed), ("mini.example.org".to_owned(), 7, "bob".to_owned()));
        let alias = settings("mini:7", "HostKeyAlias Mini-Box");
        assert_eq!(alias.known_as, "mini-box");
    }

    #[test]
    fn keys_agents_and_files_are_found_where_they_are_named() {
        let text = "IdentityFile ~/.ssh/%r-%h\nIdentityFile ${KEYS}/a%%b\nIdentitiesOnly yes\n\
                    IdentityFile ~/.ssh/%r-%h\nUserKnownHostsFile ~/kh %d/kh2\nGlobalKnownHostsFile none\n\
                    IdentityAgent ~/agent.sock\nBatchMode yes\nPasswordAuthentication no\n\
                    StrictHostKeyChecking yes\nPubkeyAuthentication unbound\n";
        let found = settings("anna@mini", text);
        assert_eq!(found.identity_files, paths(&["/home/me/.ssh/anna-mini", "/keys/a%b"]));
        assert!(found.chosen && found.identities_only && found.batch);
        assert_eq!(found.user_known_hosts, paths(&["/home/me/kh", "/home/me/kh2"]));
        assert!(found.global_known_hosts.is_empty());
        assert_eq!(found.agent, Some(PathBuf::from("/home/me/agent.sock")));
        assert_eq!(found.strict, StrictHostKeys::Yes);
        let Methods { public_key, password, keyboard_interactive } = found.methods;
        assert!(public_key && !password && keyboard_interactive);
        let agent = |text: &str| settings("mini", text).agent;
        assert_eq!(agent("IdentityAgent none"), None);
        assert_eq!(agent("IdentityAgent SSH_AUTH_SOCK"), Some(PathBuf::from("/agent")));
        assert_eq!(agent("IdentityAgent $KEYS"), Some(PathBuf::from("/keys")));
        for lax in ["no", "off", "accept-new", "ask"] {
            let found = settings("mini", &format!("StrictHostKeyChecking {lax}"));
            assert_eq!(found.strict, StrictHostKeys::Ask, "{lax}");
        }
    }

    #[test]
    fn what_only_ssh_does_is_refused_by_name_and_line() {
        for (text, what) in [
            ("\nProxyJump bastion", "ProxyJump"),
            ("ProxyCommand nc %h %p", "ProxyCommand"),
            ("CertificateFile ~/.ssh/id-cert.pub", "CertificateFile"),
            ("PKCS11Provider /lib/p11.so", "PKCS11Provider"),
            ("RevokedHostKeys /krl", "RevokedHostKeys"),
            ("CanonicalizeHostname yes", "CanonicalizeHostname"),
            ("IdentityFile ~/.ssh/%C", "%C"),
        ] {
            let error = read("mini", text).expect_err(text);
            let said = format!("{error} {}", error.hints().join(" "));
            assert!(said.contains(what) && said.contains("config:"), "{said}");
            assert!(said.contains("--ssh system"), "{said}");
            assert!(read("mini", &format!("Host other\n{text}")).is_ok(), "{text}");
        }
        assert!(read("mini", "ProxyJump none\nCanonicalizeHostname no").is_ok());
    }

    #[test]
    fn damaged_values_are_named_with_their_line() {
        for (text, why) in [
            ("HostName -oProxyCommand=x", "option"),
            ("HostName a;b", "character"),
            ("User -l", "option"),
            ("HostKeyAlias \"a b\"", "character"),
            ("Port ssh", "Port ssh"),
            ("IdentitiesOnly maybe", "neither yes nor no"),
            ("IdentityFile ${NOPE}/x", "${NOPE}"),
            ("IdentityFile ${KEYS", "brace"),
            ("IdentityFile x%", "lone %"),
        ] {
            let error = read("mini", text).expect_err(text).to_string();
            assert!(error.contains(why) && error.contains("config:1"), "{error}");
        }
    }

    #[test]
    fn includes_are_read_from_the_disk() {
        let dir = tempfile::tempdir().expect("a folder");
        let ssh = dir.path().join(".ssh");
        std::fs::create_dir_all(ssh.join("config.d")).expect("folders");
        for (name, text) in
            [("a.conf", "User a"), ("b.conf", "User b\nPort 7"), (".hidden", "Port 8")]
        {
            std::fs::write(ssh.join("config.d").join(name), text).expect("written");
        }
        let user = User { home: dir.path().to_owned(), ..user() };
        let to: Destination = "mini".parse().expect("good");
        let load = |text: &str| {
            std::fs::write(ssh.join("config"), text).expect("written");
            Settings::load(&to, &user)
        };
        let found = load("Include config.d/* missing\n").expect("read");
        assert_eq!((found.user.as_str(), found.port), ("a", 7));
        let found = load(&format!("Include {}/.ssh/config.d/b.*\n", dir.path().display()));
        assert_eq!(found.expect("read").user, "b");
        assert_eq!(load("Include ~/.ssh/config.d/b.conf").expect("read").user, "b");
        let error = load("Include */b.conf").expect_err("a folder").to_string();
        assert!(error.contains("config:1") && error.contains("--ssh system"), "{error}");
        std::fs::remove_file(ssh.join("config")).expect("gone");
        assert_eq!(Settings::load(&to, &user).expect("no file").user, "me");
        std::fs::create_dir(ssh.join("config")).expect("a folder");
        assert!(Settings::load(&to, &user).is_err());
    }
}
