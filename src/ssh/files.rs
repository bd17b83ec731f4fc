//! Files of SSH, read within bounds.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::config::Files;
use super::error::SshError;
use super::names::in_home;
use super::pattern;
use super::settings::User;

/// Includes from the disk; those without a place of their own lie in `~/.ssh`.
#[derive(Debug)]
pub(super) struct Disk<'a> {
    home: &'a Path,
}

impl<'a> Disk<'a> {
    pub(super) fn of(user: &'a User) -> Self {
        Self { home: &user.home }
    }
}

impl Files for Disk<'_> {
    fn include(&mut self, word: &str) -> Result<Vec<(PathBuf, String)>, String> {
        let path = self.home.join(".ssh").join(in_home(word, self.home));
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
        Ok(meta) if meta.is_file() => {}
        Ok(_) => return Err(fault("it is not a file".to_owned())),
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

/// Twenty thousand hosts.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;
const INCLUDED_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::super::{Destination, Settings};
    use super::*;

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
        let (name, home) = ("me".to_owned(), dir.path().to_owned());
        let user = User { name, home, agent: None, variable: |_| None };
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
