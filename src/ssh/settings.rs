//! What `~/.ssh/config` means for one destination. What this client does not do is refused by name and
//! never passed over where it would lead to another machine, or trust one that `ssh` would not.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::config::{Files, Query, Values};
use super::destination::{Destination, check_host, check_user, port_number};
use super::error::{Place, SshError};
use super::files::{Disk, read_text};
use super::known_hosts::name_of;
use super::names::{Names, expand, fault};

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
        Self::read(to, user, &path, &text, &mut Disk::of(user))
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
        let host = host_name(&values, to)?;
        let port = port(&values, to)?;
        let name = user_name(&values, to, user)?;
        let (home, port_text) = (user.home.to_string_lossy(), port.to_string());
        let names = Names {
            user,
            tokens: &[
                ('h', &host),
                ('n', &to.host),
                ('p', &port_text),
                ('r', &name),
                ('u', &user.name),
                ('d', &home),
            ],
        };
        let known_hosts = |keyword, folder: &Path, defaults: [&str; 2]| match values.of(keyword) {
            Some(value) => names.files(value),
            None => Ok(defaults.map(|name| folder.join(name)).to_vec()),
        };
        let ssh = user.home.join(".ssh");
        let user_known_hosts =
            known_hosts("userknownhostsfile", &ssh, ["known_hosts", "known_hosts2"])?;
        let global_known_hosts = known_hosts(
            "globalknownhostsfile",
            Path::new("/etc/ssh"),
            ["ssh_known_hosts", "ssh_known_hosts2"],
        )?;
        Ok(Self {
            known_as: match host_key_alias(&values)? {
                Some(alias) => alias,
                None => name_of(&host, port),
            },
            identity_files: identity_files(&values, &names, &ssh)?,
            chosen: !values.identity_files().is_empty(),
            identities_only: is_on(&values, "identitiesonly", false)?,
            agent: agent(&values, &names)?,
            user_known_hosts,
            global_known_hosts,
            strict: strict(&values),
            methods: Methods {
                // `host-bound` and `unbound` are forms of yes.
                public_key: word(&values, "pubkeyauthentication")
                    .is_none_or(|(word, _)| !is(word, "no")),
                password: is_on(&values, "passwordauthentication", true)?,
                keyboard_interactive: is_on(&values, "kbdinteractiveauthentication", true)?,
            },
            batch: is_on(&values, "batchmode", false)?,
            host,
            port,
            user: name,
        })
    }
}

/// The first word of a value, and where it is written.
fn word<'a>(values: &'a Values, keyword: &str) -> Option<(&'a str, &'a Place)> {
    values.of(keyword).map(|value| (value.words[0].as_str(), &value.at))
}

fn host_name(values: &Values, to: &Destination) -> Result<String, SshError> {
    let Some((name, at)) = word(values, "hostname") else { return Ok(to.host.clone()) };
    let name = expand(name, at, &[('h', &to.host), ('n', &to.host)])?;
    check_host(&name).map_err(|why| fault(at, format!("HostName {name}: {why}")))?;
    Ok(name)
}

fn port(values: &Values, to: &Destination) -> Result<u16, SshError> {
    match (to.port, word(values, "port")) {
        (Some(port), _) => Ok(port),
        (None, Some((digits, at))) => port_number(digits)
            .ok_or_else(|| fault(at, format!("Port {digits} is not a number from 1 to 65535"))),
        (None, None) => Ok(SSH_PORT),
    }
}

fn user_name(values: &Values, to: &Destination, user: &User) -> Result<String, SshError> {
    match (&to.user, word(values, "user")) {
        (Some(name), _) => Ok(name.clone()),
        (None, Some((name, at))) => {
            check_user(name).map_err(|why| fault(at, format!("User {name}: {why}")))?;
            Ok(name.to_owned())
        }
        (None, None) => Ok(user.name.clone()),
    }
}

fn host_key_alias(values: &Values) -> Result<Option<String>, SshError> {
    let Some((alias, at)) = word(values, "hostkeyalias") else { return Ok(None) };
    check_host(alias).map_err(|why| fault(at, format!("HostKeyAlias {alias}: {why}")))?;
    Ok(Some(alias.to_ascii_lowercase()))
}

fn identity_files(
    values: &Values,
    names: &Names<'_>,
    ssh: &Path,
) -> Result<Vec<PathBuf>, SshError> {
    if values.identity_files().is_empty() {
        return Ok(DEFAULT_KEYS.iter().map(|name| ssh.join(name)).collect());
    }
    let mut files = Vec::new();
    for value in values.identity_files() {
        files.extend(names.files(value)?);
    }
    let mut seen = HashSet::new();
    files.retain(|path| seen.insert(path.clone()));
    Ok(files)
}

/// The agent's socket.
fn agent(values: &Values, names: &Names<'_>) -> Result<Option<PathBuf>, SshError> {
    let user = names.user;
    let Some((word, at)) = word(values, "identityagent") else { return Ok(user.agent.clone()) };
    if is(word, "none") {
        return Ok(None);
    }
    if word == "SSH_AUTH_SOCK" {
        return Ok(user.agent.clone());
    }
    match word.strip_prefix('$').filter(|name| !name.starts_with('{')) {
        Some(name) => Ok((user.variable)(name).map(PathBuf::from)),
        None => Ok(Some(names.file(word, at)?)),
    }
}

fn strict(values: &Values) -> StrictHostKeys {
    match word(values, "stricthostkeychecking") {
        Some((word, _)) if is(word, "yes") || is(word, "true") => StrictHostKeys::Yes,
        _ => StrictHostKeys::Ask,
    }
}

fn is_on(values: &Values, keyword: &str, default: bool) -> Result<bool, SshError> {
    let Some((word, at)) = word(values, keyword) else { return Ok(default) };
    match word.to_ascii_lowercase().as_str() {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => Err(fault(at, format!("{keyword} {word} is neither yes nor no"))),
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

const SSH_PORT: u16 = 22;
const DEFAULT_KEYS: &[&str] = &["id_ed25519", "id_ecdsa", "id_rsa", "id_ecdsa_sk", "id_ed25519_sk"];

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
}
