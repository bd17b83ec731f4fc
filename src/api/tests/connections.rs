//! Clients that leave or dawdle, and the end of the server.

use super::super::server::STOP_MAX;
use super::*;

/// The node learns of a client's leaving by the drop of what it holds.
#[tokio::test]
async fn a_client_that_leaves_cancels_its_request() {
    for more in ["", r#","stream":true"#] {
        for begun in [false, true] {
            let mut fake = Fake::start().await;
            let mut client = fake.send(&post(chat(more))).await;
            let events = fake.admit().await;
            if begun {
                events.send(text("one")).await.unwrap();
                if !more.is_empty() {
                    client.wait_for("one").await;
                }
            }
            drop(client);
            timeout(PATIENCE, events.closed()).await.expect("the generation was dropped");
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_for_admission() {
    for more in ["", r#","stream":true"#] {
        let mut fake = Fake::start().await;
        let client = fake.send(&post(chat(more))).await;
        let mut submission = fake.submission().await;
        drop(client);
        timeout(PATIENCE, submission.reply.closed()).await.expect("the wait was given up");
    }
}

#[tokio::test]
async fn one_clients_leaving_leaves_the_others_alone() {
    let mut fake = Fake::start().await;
    let stays = fake.send(&post(chat(""))).await;
    let kept = fake.admit().await;
    let leaves = fake.send(&post(chat(""))).await;
    let dropped = fake.admit().await;
    drop(leaves);
    timeout(PATIENCE, dropped.closed()).await.unwrap();
    kept.send(text("still here")).await.unwrap();
    kept.send(finished(FinishReason::Stop)).await.unwrap();
    assert!(stays.reply().await.body.contains("still here"));
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let mut fake = Fake::start().await;
    let request = String::from_utf8(post(chat(""))).unwrap().replace("connection: close\r\n", "");
    let mut client = fake.send(request.as_bytes()).await;
    let mut ids = Vec::new();
    for answer in ["first", "second"] {
        let submission = fake.submission().await;
        ids.push(submission.request.id);
        let (events, receiver) = mpsc::channel(8);
        let generation = Generation { prompt_tokens: 1, seed: 0, events: receiver };
        submission.reply.send(Ok(generation)).unwrap();
        events.send(text(answer)).await.unwrap();
        events.send(finished(FinishReason::Stop)).await.unwrap();
        client.wait_for(&format!(r#""content":"{answer}""#)).await;
        client.socket.write_all(request.as_bytes()).await.unwrap();
    }
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn half_open_clients_do_not_hold_up_the_rest() {
    let fake = Fake::start().await;
    let mut held = Vec::new();
    for piece in ["", "POST /v1/chat", "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"]
    {
        for _ in 0..20 {
            held.push(fake.send(piece.as_bytes()).await);
        }
    }
    let whole = post(chat(""));
    held.push(fake.send(&whole[..whole.len() - 5]).await);
    assert_eq!(fake.ask(&get("/health")).await.status, 200);
    let garbage = fake.ask(b"\x16\x03\x01\x02\x00\x01 garbage\r\n\r\n").await;
    assert_eq!(garbage.status, 400);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000));
    let mut client = fake.send(b"").await;
    // The server may answer and close before all of it was sent.
    let _ = client.socket.write_all(long.as_bytes()).await;
    let mut read = Vec::new();
    let _ = timeout(PATIENCE, client.socket.read_to_end(&mut read)).await.unwrap();
    assert_eq!(fake.ask(&get("/health")).await.status, 200);
}

/// A running stream may end; what comes meanwhile is refused; then the server is gone.
#[tokio::test]
async fn stopping() {
    let mut fake = Fake::start().await;
    let idle = fake.send(b"").await;
    let mut running = fake.send(&post(chat(r#","stream":true"#))).await;
    let events = fake.admit().await;
    events.send(text("one")).await.unwrap();
    running.wait_for("one").await;

    fake.stop.take().unwrap().send(()).unwrap();
    let Client { mut socket, mut read } = idle;
    timeout(PATIENCE, socket.read_to_end(&mut read)).await.unwrap().unwrap();
    assert!(read.is_empty(), "an idle connection is closed without a word");
    for request in [post(chat("")), get("/ready")] {
        let reply = fake.ask(&request).await;
        assert_eq!((reply.status, reply.error().0.as_str()), (503, "stopping"));
        assert!(reply.header("retry-after").is_some());
    }
    assert_eq!(fake.ask(&get("/health")).await.status, 200);

    events.send(text("two")).await.unwrap();
    events.send(finished(FinishReason::Stop)).await.unwrap();
    let reply = running.reply().await;
    assert!(reply.body.contains("two") && reply.body.ends_with("data: [DONE]\n\n"));
    timeout(PATIENCE, &mut fake.running).await.unwrap().unwrap();
    assert!(TcpStream::connect(fake.addr).await.is_err(), "the port is free again");
}

#[tokio::test(start_paused = true)]
async fn stopping_does_not_wait_for_ever() {
    let mut fake = Fake::start().await;
    let _client = fake.send(&post(chat(""))).await;
    let events = fake.admit().await;
    let start = tokio::time::Instant::now();
    fake.stop.take().unwrap().send(()).unwrap();
    (&mut fake.running).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), STOP_MAX.as_secs());
    events.closed().await;
}

#[tokio::test]
async fn dropping_the_server_cancels_everything() {
    let mut fake = Fake::start().await;
    let _client = fake.send(&post(chat(""))).await;
    let events = fake.admit().await;
    fake.running.abort();
    timeout(PATIENCE, events.closed()).await.unwrap();
}
