"""Evidence on live traffic that strict laws are exact: bets against it that must not win, and replays."""
