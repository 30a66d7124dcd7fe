"""What families that see and hear share: pictures and videos as their encoders take them, and the encoders' parts."""
