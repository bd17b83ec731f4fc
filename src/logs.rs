//! The node's log on disk, its ranks' lines included: two files of bounded size in the home, so
//! that a node may run for years. It knows no message's meaning.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// Where lines go once a node has opened its home; before that they are dropped.
static OPENED: Mutex<Option<Log>> = Mutex::new(None);

/// A log of this process; starts to write when [`open`] was called.
#[derive(Debug, Clone, Copy)]
pub struct LogWriter;

/// Sends the lines of this process to `<home>/logs/node.log` from now on.
pub fn open(home: &Path) -> io::Result<()> {
    let log = Log::open(home, FILE_BYTES_MAX)?;
    *OPENED.lock().unwrap_or_else(PoisonError::into_inner) = Some(log);
    Ok(())
}

/// The last lines of a home's log: at most `lines` of them and at most `bytes_max`.
pub fn tail(home: &Path, lines: usize, bytes_max: usize) -> io::Result<String> {
    let mut text = String::new();
    for name in [OLDER, NEWEST] {
        text.push_str(&end_of(&folder(home).join(name), bytes_max)?);
    }
    Ok(last_lines(&text, lines, bytes_max).to_owned())
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}

impl Write for LogWriter {
    /// Takes a whole line, which is how `tracing` writes.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(log) = OPENED.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            log.write(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The open file and how full it is.
#[derive(Debug)]
struct Log {
    folder: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
}

impl Log {
    fn open(home: &Path, bytes_max: u64) -> io::Result<Self> {
        let folder = folder(home);
        fs::create_dir_all(&folder)?;
        let file = append(&folder.join(NEWEST))?;
        let bytes = file.metadata()?.len();
        Ok(Self { folder, file, bytes, bytes_max })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.bytes + line.len() as u64 > self.bytes_max {
            fs::rename(self.folder.join(NEWEST), self.folder.join(OLDER))?;
            self.file = append(&self.folder.join(NEWEST))?;
            self.bytes = 0;
        }
        self.file.write_all(line)?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn folder(home: &Path) -> PathBuf {
    home.join("logs")
}

/// The end of a file, from a line's beginning; nothing where there is no file.
fn end_of(path: &Path, bytes_max: usize) -> io::Result<String> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    let start = file.metadata()?.len().saturating_sub(bytes_max as u64);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    file.take(bytes_max as u64).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    match text.split_once('\n') {
        Some((_, rest)) if start > 0 => Ok(rest.to_owned()),
        _ => Ok(text.into_owned()),
    }
}

fn last_lines(text: &str, lines: usize, bytes_max: usize) -> &str {
    let mut start = text.len();
    for line in text.split_inclusive('\n').rev().take(lines) {
        if text.len() - start + line.len() > bytes_max {
            break;
        }
        start -= line.len();
    }
    &text[start..]
}

const NEWEST: &str = "node.log";
const OLDER: &str = "node.1.log";
/// Two such files are some days of a busy node.
const FILE_BYTES_MAX: u64 = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_hold_the_newest_lines_and_no_more() {
        let home = tempfile::tempdir().expect("a folder");
        let mut log = Log::open(home.path(), 100).expect("opened");
        for n in 0..50 {
            log.write(format!("line {n:03}\n").as_bytes()).expect("written");
        }
        for name in [NEWEST, OLDER] {
            assert!(fs::metadata(folder(home.path()).join(name)).expect("a file").len() <= 100);
        }
        assert_eq!(tail(home.path(), 2, 1000).expect("read"), "line 048\nline 049\n");
        let all = tail(home.path(), 1000, 1000).expect("read");
        let numbers: Vec<&str> = all.lines().collect();
        assert!(numbers.len() > 10 && numbers.last() == Some(&"line 049"), "{all}");
        assert!(numbers.is_sorted(), "{all}");
        // A second process goes on where the first stopped.
        drop(log);
        Log::open(home.path(), 100).expect("opened").write(b"more\n").expect("written");
        assert_eq!(tail(home.path(), 1, 1000).expect("read"), "more\n");
    }

    #[test]
    fn a_tail_begins_with_a_whole_line() {
        for (lines, bytes, expected) in
            [(9, 9, "bb\ncc\n"), (1, 9, "cc\n"), (9, 5, "cc\n"), (9, 2, "")]
        {
            assert_eq!(last_lines("aaaa\nbb\ncc\n", lines, bytes), expected);
        }
        let home = tempfile::tempdir().expect("a folder");
        assert_eq!(tail(home.path(), 9, 9).expect("no file is no lines"), "");
    }
}
