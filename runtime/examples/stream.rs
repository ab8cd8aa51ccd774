//! Streams an answer: `cargo run --release --example stream -- MODEL.gguf "Once upon a time"`.

use std::io::Write;

use emel::{Engine, RamBudget, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("usage: stream MODEL.gguf [TEXT]")?;
    let text = arguments.next().unwrap_or("Once upon a time".to_owned());
    // Any executor will do; the engine has a thread of its own.
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let engine = Engine::builder()
            .ram_budget(RamBudget::Percent(80.0))
            .context(512)
            .open(model)
            .await?;
        let mut stream = engine.generate(Request::new(text).max_tokens(64)).await?;
        while let Some(token) = stream.next().await {
            print!("{}", token?.text);
            std::io::stdout().flush()?;
        }
        println!();
        Ok(())
    })
}
