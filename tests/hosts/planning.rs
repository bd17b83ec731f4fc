//! The plan of whole nodes: what each can spare decides who holds what, or that nothing is loaded.

use std::time::Instant;

use serde_json::json;

use super::cluster::{Home, PATIENCE, Process, Ready, body, post, tiny, turn};

/// Two nodes that may each use so much, and reserve nothing.
fn nodes(limits: [&'static str; 2]) -> Ready {
    let [near, far] = limits.map(|limit| (limit, "127.0.0.1:0".to_owned()));
    Ready::new(vec![
        (Home::new("near").with_memory_limit(near.0), near.1),
        (Home::new("far").with_memory_limit(far.0), far.1),
    ])
}

#[test]
fn a_model_goes_where_there_is_room_and_is_refused_where_there_is_none() {
    let model = tiny("llama-f32");
    let spare = &["--headroom-gb", "0", "--sequences", "1", "--chunk", "16", "--context", "64"];

    // It fits this node alone, and is not split.
    let ready = nodes(["1GiB", "1GiB"]);
    let mut serve = ready.serve(&model, spare);
    serve.line("on 1 rank(s)");
    serve.line("note: this model fits `near` alone; split over all 2 nodes it would be about");
    serve.line("hint: `--nodes all` splits it anyway");
    serve.line("OpenAI endpoint");
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
    drop(ready);

    // It takes both.
    let ready = nodes(["240KiB", "240KiB"]);
    let mut serve = ready.serve(&model, spare);
    serve.line("on 2 rank(s)");
    let line = serve.line("OpenAI endpoint");
    let url = line.rsplit(' ').next().expect("a url").trim_end_matches("/chat/completions");
    let asked = post(url, &body("hello", &json!({"max_tokens": 4})));
    assert_eq!(asked.0, 200, "{}", asked.1);
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
    let mut dry = ready.serve(&model, &[spare, &["--dry-run"][..]].concat());
    assert_eq!(dry.exit_code(), Some(0));
    let said = dry.output();
    assert!(said.contains("on 2 rank(s), 1 sequence(s) of up to 64 tokens"), "{said}");
    assert!(said.contains("memory limit"), "{said}");
    drop(ready);

    // Both are too little: nothing is loaded, and the sums say why.
    let ready = nodes(["100KiB", "40KiB"]);
    let mut serve = ready.serve(&model, spare);
    assert_eq!(serve.exit_code(), Some(1));
    let said = serve.output();
    for part in [
        "error: llama-f32 does not fit the memory that the cluster can spare now",
        "memory limit 0.0 − 0.0 reserve  ← short by less than 0.1",
        "hint: `--memory-limit` of",
    ] {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
    assert!(!said.contains("materialized"), "{said}");
}

/// A laptop asks, another machine drives: it holds rank 0 and the endpoint, and all ends with the command.
#[test]
fn another_node_drives_for_as_long_as_it_is_asked() {
    let _turn = turn();
    let (laptop, studio) = (Home::new("laptop"), Home::new("studio"));
    laptop.trust(&studio);
    studio.trust(&laptop);
    let far = studio.up("127.0.0.1:0");
    let addr = far.line("is up").rsplit(' ').next().expect("an address").to_owned();
    let near = ["cluster", "up", "--name", "laptop", "--listen", "127.0.0.1:0", "--peer", &addr];
    let near = Process::spawn(laptop.daisy(&near));
    near.line("is up");
    let model = tiny("llama-f32");
    let asking = |command: &str, driver: &str, more: &[&str]| {
        let args = ["cluster", command, "--model", &model, "--driver", driver];
        Process::spawn(laptop.daisy(&[&args[..], more].concat()))
    };

    let mut plan = asking("plan", "studio", &["--json"]);
    assert_eq!(plan.exit_code(), Some(0));
    assert!(plan.output().contains(r#""node":"studio""#), "{}", plan.output());

    let mut serve = asking("serve", "studio", &["--port", "0"]);
    serve.line("| studio");
    let line = serve.line("OpenAI endpoint");
    let url = line.rsplit(' ').next().expect("a url").trim_end_matches("/chat/completions");
    let asked = post(url, &body("hello", &json!({"max_tokens": 4})));
    assert_eq!(asked.0, 200, "{}", asked.1);
    assert!(studio.status().contains("llama-f32"), "{}", studio.status());
    assert!(!laptop.status().contains("llama-f32"), "{}", laptop.status());
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0), "{}", serve.output());

    // Without a word, too: the place is free again.
    let mut serve = asking("serve", "studio", &["--port", "0"]);
    serve.line("OpenAI endpoint");
    serve.signal("-KILL");
    serve.exit_code();
    let until = Instant::now() + PATIENCE;
    while studio.status().contains("llama-f32") {
        assert!(Instant::now() < until, "{}", studio.status());
    }
    let mut serve = asking("serve", "studio", &["--port", "0"]);
    serve.line("OpenAI endpoint");
    // The driver's node ends, and the command line says so.
    drop(far);
    assert_eq!(serve.exit_code(), Some(3), "{}", serve.output());
    assert!(serve.output().contains("the connection to the driver ended"), "{}", serve.output());

    let mut nobody = asking("serve", "air", &["--port", "0"]);
    assert_eq!(nobody.exit_code(), Some(3));
    assert!(nobody.output().contains("--driver air: no paired node of that name answers"));
}
