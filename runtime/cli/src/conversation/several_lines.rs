//! How a message of several lines is marked.

/// What encloses a message of several lines.
const QUOTES: &str = r#"""""#;

/// Whether more lines belong to a message: one that begins with `"""` ends with that, and a
/// line that ends with a backslash goes on in the next.
pub(super) fn is_open(text: &str) -> bool {
    match text.trim_start().strip_prefix(QUOTES) {
        Some(rest) => !rest.trim_end().ends_with(QUOTES),
        None => text.chars().rev().take_while(|&c| c == '\\').count() % 2 == 1,
    }
}

/// The message without the marks of its lines.
pub(super) fn closed(text: &str) -> String {
    if let Some(rest) = text.trim_start().strip_prefix(QUOTES) {
        let rest = rest.trim_end();
        let quoted = rest.strip_suffix(QUOTES).unwrap_or(rest);
        let quoted = quoted.strip_prefix('\n').unwrap_or(quoted);
        return quoted.strip_suffix('\n').unwrap_or(quoted).to_owned();
    }
    let mut message = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match line.strip_suffix("\\\n") {
            Some(begun) if is_open(line.trim_end_matches('\n')) => {
                message += begun;
                message.push('\n');
            }
            _ => message += line,
        }
    }
    message
}
