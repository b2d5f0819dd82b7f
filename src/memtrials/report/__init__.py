"""What people and other tools read: terminal tables, views of trials, exports."""
