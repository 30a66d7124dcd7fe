"""Speech in any of Whisper's languages to English speech: a recogniser, a text stage and a synthesiser in a row."""
