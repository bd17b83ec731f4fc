//! A command that runs on the other machine: lines in, lines out, how it ended. Whatever it says is
//! bounded, in size and in time.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Ended by being dropped.
pub struct Running {
    input: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    output: Box<dyn AsyncRead + Send + Unpin>,
    read: Vec<u8>,
    ending: JoinHandle<Ending>,
}

/// How a command ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ending {
    /// None: the connection broke off, or a signal ended it.
    pub status: Option<u32>,
    /// The last of what it wrote to standard error, as far as it came this way.
    pub said: String,
}

/// What came, when a line was waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Text(String),
    /// It says no more.
    End,
    /// Longer than a line may be, or no text.
    Nonsense,
    /// Nothing within the time.
    Late,
}

impl Running {
    pub(super) fn new(
        input: impl AsyncWrite + Send + Unpin + 'static,
        output: impl AsyncRead + Send + Unpin + 'static,
        ending: JoinHandle<Ending>,
    ) -> Self {
        let (input, output) = (Box::new(input), Box::new(output));
        Self { input: Some(input), output, read: Vec::new(), ending }
    }

    pub async fn send(&mut self, bytes: &[u8], max: Duration) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let sent = async {
            input.write_all(bytes).await?;
            input.flush().await
        };
        timeout(max, sent).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Nothing more will be sent.
    pub async fn close_input(&mut self) {
        if let Some(mut input) = self.input.take() {
            // A connection that is gone shows at the next line.
            let _ = timeout(CLOSE_MAX, input.shutdown()).await;
        }
    }

    /// The next line of its standard output, without its end.
    pub async fn line(&mut self, max: Duration) -> Line {
        match timeout(max, self.next_line()).await {
            Ok(line) => line,
            Err(_) => Line::Late,
        }
    }

    /// Cancel-safe: what was read of a line is kept.
    async fn next_line(&mut self) -> Line {
        let mut chunk = [0; 4096];
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                let line = String::from_utf8(line).map(|line| line.trim_end().to_owned());
                return line.map_or(Line::Nonsense, Line::Text);
            }
            if self.read.len() > LINE_BYTES_MAX {
                self.read.clear();
                return Line::Nonsense;
            }
            match self.output.read(&mut chunk).await {
                // A line without an end was cut.
                Ok(0) | Err(_) => return Line::End,
                Ok(count) => self.read.extend_from_slice(&chunk[..count]),
            }
        }
    }

    /// Waits for its end.
    pub async fn end(mut self, max: Duration) -> Ending {
        self.close_input().await;
        let mut output = std::mem::replace(&mut self.output, Box::new(tokio::io::empty()));
        let drained = async move { tokio::io::copy(&mut output, &mut tokio::io::sink()).await };
        let ended = async {
            let _ = drained.await;
            (&mut self.ending).await.unwrap_or_default()
        };
        timeout(max, ended).await.unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ending.abort();
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("ending", &self.ending).finish_non_exhaustive()
    }
}

/// Keeps the last bytes that are added.
#[derive(Debug, Default)]
pub(super) struct Tail(Vec<u8>);

impl Tail {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        let over = self.0.len().saturating_sub(TAIL_BYTES_MAX);
        self.0.drain(..over);
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

/// An introduction has a few hundred bytes.
const LINE_BYTES_MAX: usize = 16 * 1024;
const TAIL_BYTES_MAX: usize = 4096;
const CLOSE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(20);

    fn running() -> (Running, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(LINE_BYTES_MAX * 4);
        let (output, input) = tokio::io::split(ours);
        let ending = Ending { status: Some(7), said: "bye".to_owned() };
        (Running::new(input, output, tokio::spawn(async { ending })), theirs)
    }

    #[tokio::test]
    async fn lines_come_whole_however_they_were_cut() {
        let (mut running, mut other) = running();
        other.write_all(b"one\r\ntw").await.expect("written");
        assert_eq!(running.line(LONG).await, Line::Text("one".to_owned()));
        assert_eq!(running.line(SOON).await, Line::Late);
        other.write_all(b"o\n\xff\nend").await.expect("written");
        assert_eq!(running.line(LONG).await, Line::Text("two".to_owned()));
        assert_eq!(running.line(LONG).await, Line::Nonsense);
        running.send(b"x\n", LONG).await.expect("sent");
        let mut got = [0; 2];
        other.read_exact(&mut got).await.expect("read");
        drop(other);
        assert_eq!(running.line(LONG).await, Line::End, "a cut line is none");
        assert_eq!(running.end(LONG).await.status, Some(7));
    }

    #[tokio::test]
    async fn a_line_without_end_is_not_waited_for() {
        let (mut running, mut other) = running();
        let endless = vec![b'x'; LINE_BYTES_MAX + 5000];
        other.write_all(&endless).await.expect("written");
        assert_eq!(running.line(LONG).await, Line::Nonsense);
        assert_eq!(running.line(SOON).await, Line::Late, "it is told once");
    }

    #[test]
    fn of_what_is_said_the_last_is_kept() {
        let mut tail = Tail::default();
        tail.add(&[b'a'; 5000]);
        tail.add(b"end");
        assert_eq!(tail.text().len(), TAIL_BYTES_MAX);
        assert!(tail.text().ends_with("aend"));
    }
}
